"""The whole as a user runs it: `llama-serve --rpc` over two workers, asked by real clients."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.acceptance.measure import Record
from tests.helpers.assets import asset
from tests.helpers.process import free_port
from tests.helpers.server_process import (
    Server,
    own_workers,
    run_server_to_its_end,
    running_server,
)

MEMORY_ALLOWANCE_BYTES = 600_000_000
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """SmolLM2 over two workers, two slots."""
    with own_workers(2) as endpoints:
        arguments = ["-m", str(asset("smollm2")), "--rpc", ",".join(endpoints), "-ngl", "99"]
        sizes = ["-c", "4096", "-np", "2", "-ub", "128"]
        with running_server(*arguments, *sizes, "--metrics") as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_openai_client_gets_an_answer(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_tokens=32,
    )
    # Which of two first words wins is too close to call here; a clear case is in the next tests.
    assert answer.choices[0].message.content
    assert answer.usage is not None
    is_cut = answer.usage.completion_tokens == 32
    assert answer.choices[0].finish_reason == ("length" if is_cut else "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_the_openai_client_streams_the_same_text(client: OpenAI) -> None:
    whole = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
    )
    stream = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert text == whole.choices[0].message.content
    assert reasons[-1] == whole.choices[0].finish_reason
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_length_and_done(server: Server) -> None:
    body = {"messages": QUESTION, "max_tokens": 3, "stream": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert '"finish_reason":"length"' in events[-2].replace(" ", "")


def test_legacy_completions(client: OpenAI) -> None:
    answer = client.completions.create(
        model="any", prompt="The capital of France is", temperature=0, max_tokens=4, stop=["."]
    )
    assert answer.choices[0].text == " Paris"
    assert answer.choices[0].finish_reason == "stop"


def test_a_prompt_that_is_too_long_is_a_400(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.completions.create(model="any", prompt="word " * 3000, max_tokens=4)
    body = caught.value.body
    assert isinstance(body, dict)
    assert body["type"] == "exceed_context_size_error"
    assert body["n_ctx"] == 2048
    assert body["n_prompt_tokens"] > 2048


def test_a_bad_parameter_is_a_400_that_names_it(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match=r"n_predict|max_tokens"):
        client.completions.create(model="any", prompt="Hi", max_tokens=-7)


def test_everything_on_workers_leaves_the_main_host_small(
    server: Server, record_property: Record
) -> None:
    peak = server.peak_rss_bytes()
    file_bytes = asset("smollm2").stat().st_size
    record_property("peak RSS bytes of the main host", peak)
    assert peak < file_bytes + MEMORY_ALLOWANCE_BYTES


def test_metrics_count(server: Server) -> None:
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["llamacpp:tokens_predicted_total"]) > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rpc", "not an endpoint"], "not an endpoint"),
        (["--rpc", "{closed}"], "refused"),
        (["-c", "-5"], "-c"),
        (["-ts", "1,2,3"], "tensor-split"),
        (["--device", "CUDA7"], "CUDA7"),
        (["--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(arguments: list[str], complaint: str) -> None:
    closed = f"127.0.0.1:{free_port()}"
    given = [argument.replace("{closed}", closed) for argument in arguments]
    done = run_server_to_its_end("-m", str(asset("smollm2")), *given)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_model_is_refused_with_a_reason(tmp_path: Path) -> None:
    whole = asset("smollm2").read_bytes()[:2_000_000]
    files = {
        "cut.gguf": (whole, "of"),
        "page.gguf": (b"<!DOCTYPE html><html></html>" * 10, "GGUF"),
        "empty.gguf": (b"", "bytes"),
        "foreign.gguf": (
            whole.replace(
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0xxxxx",
            ),
            "foreign.gguf",
        ),
    }
    for name, (data, complaint) in files.items():
        path = tmp_path / name
        path.write_bytes(data)
        done = run_server_to_its_end("-m", str(path))
        assert done.returncode == 1, name
        assert name in done.stderr and complaint in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
