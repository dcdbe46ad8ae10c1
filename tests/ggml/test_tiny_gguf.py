"""The models that tests write are real ones: stock llama.cpp loads and runs each."""

import json
import subprocess
from pathlib import Path

import pytest

from app.ggml.types import MODEL_TYPES, GGMLType
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import ARCHITECTURES, TinyConfig, write_tiny


def _tokens_from_stock(model: Path) -> list[int]:
    command = [str(asset("peer_v8") / "client"), str(model), "-", "Once", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tokens: list[int] = json.loads(done.stdout)["tokens"]
    return tokens


@pytest.mark.peer_v8
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_stock_loads_every_architecture(arch: str, tied: bool, tmp_path: Path) -> None:
    path = tmp_path / f"tiny-{arch}-{tied}.gguf"
    write_tiny(path, asset("stories260k"), TinyConfig(arch, tied=tied))
    assert _tokens_from_stock(path) == [1, 403]


@pytest.mark.peer_v8
@pytest.mark.parametrize("type_", sorted(MODEL_TYPES))
def test_stock_loads_every_model_type(type_: GGMLType, tmp_path: Path) -> None:
    path = tmp_path / f"tiny-{type_.name}.gguf"
    config = TinyConfig("llama", n_layer=1, n_embd=256, n_ff=256, types={"*": type_})
    write_tiny(path, asset("stories260k"), config)
    assert _tokens_from_stock(path) == [1, 403]


def test_equal_arguments_write_equal_bytes(tmp_path: Path) -> None:
    config = TinyConfig("gemma3", types={"*ffn_*": GGMLType.Q8_0})
    first = write_tiny(tmp_path / "a.gguf", asset("stories260k"), config)
    second = write_tiny(tmp_path / "b.gguf", asset("stories260k"), config)
    assert first.read_bytes() == second.read_bytes()
