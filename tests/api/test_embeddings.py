"""The endpoints of embeddings and of reranking, in llama-server's forms, on a made-up engine.

The engine's vector of a text is (3, 4); its score of a pair is its number of tokens.
"""

import base64
import struct
from collections.abc import Iterator
from dataclasses import replace

import httpx
import numpy as np
import openai
import pytest

from app.api.embed import normalized
from app.engine.errors import InputTooLargeError
from app.engine.request import Embedded, Failed, GenerationRequest, Started, StopReason
from app.models.hparams import Pooling
from tests.helpers.fake_engine import BOS, FakeEngine, Step, finished
from tests.helpers.live_server import SETTINGS, LiveServer, live_server

EMBEDS = replace(SETTINGS, embeddings=True)
RANKS = replace(EMBEDS, reranking=True)


def vectors(request: GenerationRequest) -> Iterator[Step]:
    yield Started(0, len(request.prompt), 0)
    yield Embedded(np.array([[3.0, 4.0]], np.float32))
    yield finished(request, 0, StopReason.LIMIT)


def scores(request: GenerationRequest) -> Iterator[Step]:
    yield Started(0, len(request.prompt), 0)
    yield Embedded(np.array([[len(request.prompt), 0.5]], np.float32))
    yield finished(request, 0, StopReason.LIMIT)


def engine_of(pooling: Pooling, rerank_template: str | None = None) -> FakeEngine:
    engine = FakeEngine(scores if pooling is Pooling.RANK else vectors)
    engine.model = replace(engine.model, n_embd=2, pooling=pooling, rerank_template=rerank_template)
    return engine


@pytest.fixture
def engine() -> FakeEngine:
    return engine_of(Pooling.MEAN)


@pytest.fixture
def server(engine: FakeEngine) -> Iterator[LiveServer]:
    with live_server(engine, EMBEDS) as live:
        yield live


@pytest.fixture
def ranker() -> Iterator[LiveServer]:
    with live_server(engine_of(Pooling.RANK), RANKS) as live:
        yield live


def post(server: LiveServer, path: str = "/v1/embeddings", **body: object) -> httpx.Response:
    return server.client.post(path, json=body)


def assert_refused(answer: httpx.Response, status: int, kind: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == kind


def test_openai_form(server: LiveServer) -> None:
    answer = post(server, input=["ab", "c"], model="mine")
    assert answer.status_code == 200, answer.text
    unit = pytest.approx([0.6, 0.8])
    assert answer.json() == {
        "model": "mine",
        "object": "list",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
        "data": [{"embedding": unit, "index": i, "object": "embedding"} for i in range(2)],
    }


def test_base64_is_little_endian_floats(server: LiveServer) -> None:
    entry = post(server, input="ab", encoding_format="base64").json()["data"][0]
    assert entry["encoding_format"] == "base64"
    floats = struct.unpack("<2f", base64.b64decode(entry["embedding"]))
    assert floats == pytest.approx((0.6, 0.8))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embeddings", {"input": "ab"}),
        ("/embedding", {"content": "ab"}),
        ("/v1/embeddings", {"content": "ab"}),
    ],
)
def test_native_form_has_a_list_of_rows(
    path: str, body: dict[str, object], server: LiveServer
) -> None:
    answer = post(server, path, **body)
    assert answer.json() == [{"index": 0, "embedding": [pytest.approx([0.6, 0.8])]}]


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("ab", [(BOS, 97, 98)]),
        ("", [(BOS,)]),
        ([12, 34], [(12, 34)]),
        ([12, "a", 34], [(12, 97, 34)]),
        (["a", [12, 34]], [(BOS, 97), (12, 34)]),
        ({"prompt_string": "a"}, [(BOS, 97)]),
        (
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            [(BOS, 97, 98)],
        ),
    ],
)
def test_forms_of_the_input(
    value: object, prompts: list[tuple[int, ...]], engine: FakeEngine, server: LiveServer
) -> None:
    assert post(server, input=value).status_code == 200
    assert [tuple(request.prompt) for request in engine.submitted] == prompts
    assert all(request.embeds and not request.cache_prompt for request in engine.submitted)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": None},
        {"input": []},
        {"input": True},
        {"input": [["a"], True]},
        {"input": {"content": "text"}},
        {"input": {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}},
        {"input": [999]},
        {"input": ["a"] * 2049},
        {"input": [[]]},
        {"input": "a", "encoding_format": 1},
        {"input": "a", "encoding_format": "hex"},
        {"input": "a", "embd_normalize": "two"},
        {"input": "a", "embd_normalize": -2},
        {"input": "a", "dimensions": 1},
    ],
)
def test_wrong_requests_are_refused(body: dict[str, object], server: LiveServer) -> None:
    assert_refused(post(server, "/v1/embeddings", **body), 400, "invalid_request_error")


def test_a_text_that_is_too_large_is_an_error_of_the_server(
    engine: FakeEngine, server: LiveServer
) -> None:
    engine.refuses = InputTooLargeError("input (600 tokens) is too large to process")
    answer = post(server, input="a")
    assert_refused(answer, 500, "server_error")
    assert "too large" in answer.json()["error"]["message"]


def test_one_text_that_fails_fails_the_request(engine: FakeEngine, server: LiveServer) -> None:
    def script(request: GenerationRequest) -> Iterator[Step]:
        if len(request.prompt) > 2:
            yield Failed(RuntimeError("broken"))
        yield from vectors(request)

    engine.script = script
    assert_refused(post(server, input=["a", "bc"]), 500, "server_error")


def test_without_pooling_there_are_rows_as_they_are_and_no_openai_form() -> None:
    with live_server(engine_of(Pooling.NONE), EMBEDS) as server:
        assert post(server, "/embeddings", input="a").json() == [
            {"index": 0, "embedding": [[3.0, 4.0]]}
        ]
        assert_refused(post(server, input="a"), 400, "invalid_request_error")


@pytest.mark.parametrize(
    "path",
    ["/v1/embeddings", "/embedding", "/v1/rerank", "/v1/reranking", "/rerank", "/reranking"],
)
def test_without_their_flags_endpoints_say_so(path: str, engine: FakeEngine) -> None:
    with live_server(engine) as closed:
        assert_refused(post(closed, path, input="a"), 501, "not_supported_error")


def test_reranking_needs_its_own_flag(server: LiveServer) -> None:
    answer = post(server, "/rerank", query="a", documents=["b"])
    assert_refused(answer, 501, "not_supported_error")


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        (-1, [3, -4]),
        (0, [24570, -32760]),
        (1, [3 / 7, -4 / 7]),
        (2, [0.6, -0.8]),
        (3, [3 / 91 ** (1 / 3), -4 / 91 ** (1 / 3)]),
        (2**31 - 1, [0.75, -1.0]),
    ],
)
def test_lengths(norm: int, expected: list[float]) -> None:
    rows = np.array([[3.0, -4.0], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(normalized(rows, norm), [expected, [0.0, 0.0]], rtol=1e-6)


def test_the_request_chooses_the_length(server: LiveServer) -> None:
    answer = post(server, input="a", embd_normalize=-1)
    assert answer.json()["data"][0]["embedding"] == [3.0, 4.0]


def test_rerank_in_the_form_of_jina(ranker: LiveServer) -> None:
    answer = post(ranker, "/v1/rerank", query="q", documents=["a", "long", "mid"], top_n=2)
    assert answer.json() == {
        "model": "fake",
        "object": "list",
        "usage": {"prompt_tokens": 14, "total_tokens": 14},
        "results": [
            {"index": 1, "relevance_score": 6.0},
            {"index": 2, "relevance_score": 5.0},
        ],
    }


def test_rerank_in_the_form_of_text_embeddings_inference(ranker: LiveServer) -> None:
    answer = post(ranker, "/rerank", query="q", texts=["a", "long"], return_text=True, top_n=9)
    assert answer.json() == [
        {"index": 1, "score": 6.0, "text": "long"},
        {"index": 0, "score": 3.0, "text": "a"},
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"documents": ["a"]},
        {"query": 1, "documents": ["a"]},
        {"query": "q"},
        {"query": "q", "documents": []},
        {"query": "q", "documents": None},
        {"query": "q", "documents": 123},
        {"query": "q", "documents": [1, 2]},
        {"query": "q", "documents": ["a"], "top_n": -1},
        {"query": "q", "texts": ["a"], "return_text": "yes"},
    ],
)
def test_wrong_reranking_is_refused(body: dict[str, object], ranker: LiveServer) -> None:
    assert_refused(post(ranker, "/rerank", **body), 400, "invalid_request_error")


def test_a_template_of_the_model_joins_query_and_document() -> None:
    engine = engine_of(Pooling.RANK, "{query}|{document}")
    with live_server(engine, RANKS) as ranker:
        post(ranker, "/rerank", query="{document}", documents=["d"])
    assert bytes(engine.submitted[0].prompt) == b"{document}|d"


def test_special_tokens_part_query_and_document() -> None:
    engine = engine_of(Pooling.RANK)
    special = replace(engine.tokenizer.vocab.special, sep=0)
    vocab = replace(engine.tokenizer.vocab, special=special, add_sep=True, add_eos=True)
    engine.tokenizer.vocab = vocab
    with live_server(engine, RANKS) as ranker:
        post(ranker, "/rerank", query="q", documents=["d"])
    assert tuple(engine.submitted[0].prompt) == (BOS, ord("q"), 257, 0, ord("d"), 257)


def test_the_official_client_reads_embeddings(server: LiveServer) -> None:
    base_url = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(api_key="none", base_url=base_url, max_retries=0) as client:
        answer = client.embeddings.create(model="any", input=["ab", "c"])
        plain = client.embeddings.create(model="any", input="ab", encoding_format="float")
    assert [entry.embedding for entry in answer.data] == [pytest.approx([0.6, 0.8])] * 2
    assert plain.data[0].embedding == pytest.approx([0.6, 0.8])
    assert answer.usage.prompt_tokens == 5
