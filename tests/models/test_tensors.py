"""The tensor list against files: every problem is found, and all of them at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from app.errors import ModelFormatError
from app.ggml.gguf_file import GGUFFile, TensorInfo
from app.ggml.types import GGMLType
from app.models.base import TensorSpec
from app.models.registry import get_architecture
from app.models.tensors import check_tensors, output_weight_name
from tests.helpers.assets import asset
from tests.helpers.tiny_gguf import write_tiny
from tests.models.cases import CASES


@dataclass
class Model:
    """An open file and what its architecture reads."""

    gguf: GGUFFile
    specs: tuple[TensorSpec, ...]

    def change(self, **tensors: TensorInfo | None) -> None:
        """Replace or drop tensors; names have "__" for a dot."""
        changed: dict[str, TensorInfo] = dict(self.gguf.tensors)
        for key, info in tensors.items():
            name = key.replace("__", ".")
            changed.pop(name, None)
            if info is not None:
                changed[name] = info
        tensors_after: Mapping[str, TensorInfo] = changed
        self.gguf.tensors = tensors_after


def _open(path: Path, name: str) -> Model:
    gguf = GGUFFile.open(write_tiny(path / "tiny.gguf", asset("stories260k"), CASES[name]))
    arch = get_architecture(gguf.architecture)
    return Model(gguf, arch.tensors(arch.hparams(gguf.metadata)))


@pytest.mark.parametrize("name", CASES)
def test_complete_files_pass(name: str, tmp_path: Path) -> None:
    model = _open(tmp_path, name)
    check_tensors(model.gguf, model.specs)
    assert len({spec.name for spec in model.specs}) == len(model.specs)


@pytest.mark.parametrize("name", ["llama-biases", "qwen2", "qwen3", "gemma3"])
def test_every_required_tensor_is_missed(name: str, tmp_path: Path) -> None:
    model = _open(tmp_path, name)
    complete = model.gguf.tensors
    for spec in model.specs:
        model.gguf.tensors = {k: v for k, v in complete.items() if k != spec.name}
        if spec.required:
            with pytest.raises(ModelFormatError, match=f"'{spec.name}' is missing"):
                check_tensors(model.gguf, model.specs)
        else:
            check_tensors(model.gguf, model.specs)


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    model = _open(tmp_path, "llama")
    attn_q = model.gguf.tensors["blk.0.attn_q.weight"]
    norm = model.gguf.tensors["output_norm.weight"]
    model.change(
        blk__0__attn_q__weight=replace(attn_q, ne=(64, 63, 1, 1)),
        blk__1__attn_k__weight=None,
        output_norm__weight=replace(norm, type=GGMLType.F16),
        blk__0__attn_q__scale=attn_q,
    )
    with pytest.raises(ModelFormatError) as caught:
        check_tensors(model.gguf, model.specs)
    text = str(caught.value)
    assert "'blk.0.attn_q.weight' has shape [64, 63, 1, 1]: expected [64, 64]" in text
    assert "'blk.1.attn_k.weight' is missing: expected shape [64, 32]" in text
    assert "'output_norm.weight' has type F16: expected F32" in text
    assert "'blk.0.attn_q.scale' is unknown to architecture 'llama'" in text


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    model = _open(tmp_path, "gemma3")
    model.gguf.tensors = {}
    with pytest.raises(ModelFormatError, match=r"and \d+ more$") as caught:
        check_tensors(model.gguf, model.specs)
    assert len(str(caught.value)) < 2000


def test_logits_come_from_the_embedding_when_the_file_ties_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert output_weight_name(_open(tmp_path, "llama").gguf) == "token_embd.weight"
    assert output_weight_name(_open(tmp_path / "a", "qwen2").gguf) == "output.weight"
