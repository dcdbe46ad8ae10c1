"""Finds the architecture that a model file names; one row per name.

Modules are imported when first asked for. A new architecture is one module in this folder and one
row in `MODULES`.
"""

import reprlib
from importlib import import_module
from typing import Final, cast

from app.errors import UnsupportedError
from app.models.base import Architecture

MODULES: Final[dict[str, str]] = {
    "bert": "app.models.bert",
    "gemma3": "app.models.gemma3",
    "llama": "app.models.llama",
    "nomic-bert": "app.models.nomic_bert",
    "qwen2": "app.models.qwen2",
    "qwen3": "app.models.qwen3",
}


def get_architecture(name: str) -> Architecture:
    """Return the architecture that GGUF calls `name`.

    Raises: UnsupportedError.
    """
    module = MODULES.get(name)
    if module is None:
        raise UnsupportedError(
            f"architecture {reprlib.repr(name)}: expected one of {', '.join(MODULES)}"
        )
    return cast(Architecture, import_module(module))
