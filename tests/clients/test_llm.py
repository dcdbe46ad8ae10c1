"""`llm` with its plugin for llama-server, which asks localhost:8080 and nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.programs import chat_server, client_program, run_client
from tests.helpers.process import listens

PORT = 8080
SHORT = ("-o", "temperature", "0", "-o", "max_tokens", "16")

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    assert not listens(PORT), f"something else listens on port {PORT}, which the plugin asks"
    with chat_server(port=PORT):
        yield


def ask(home: Path, *arguments: str) -> str:
    environment = {"LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"}
    return run_client(client_program("llm"), *arguments, **environment).strip()


def test_an_answer_is_the_same_streamed_and_whole(tmp_path: Path) -> None:
    question = ("-m", "llama-server", "What is the capital of France?", *SHORT)
    whole = ask(tmp_path, "--no-stream", *question)
    assert whole
    assert ask(tmp_path, *question) == whole
    logged = json.loads(ask(tmp_path, "logs", "--json"))
    assert [entry["response"].strip() for entry in logged] == [whole, whole]
    assert all(entry["input_tokens"] > 8 for entry in logged)


def test_a_conversation_goes_on(tmp_path: Path) -> None:
    first = ask(tmp_path, "-m", "llama-server", "Name a colour.", *SHORT)
    second = ask(tmp_path, "-c", "Name another one.", *SHORT)
    assert first and second


def test_a_tool_is_offered(tmp_path: Path) -> None:
    offered = ("-m", "llama-server-tools", "-T", "llm_version", "Say hello.")
    assert ask(tmp_path, *offered, *SHORT) is not None
    logged = json.loads(ask(tmp_path, "logs", "--json"))
    assert [tool["name"] for tool in logged[0]["tools"]] == ["llm_version"]
