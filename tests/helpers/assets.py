"""Where tests find real models, vectors and stock peers.

Nothing is downloaded here: `python -m tests.fetch_assets NAME…` does that. An asset that is absent
skips the test with the command that fetches it; under CI a skip fails (tests.helpers.ci_skips).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

PROJECT_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Asset:
    """One row: what the test gets, and the entry that must exist for it to count as present."""

    path: str
    proof: str = ""
    in_shared: bool = False


ASSETS: Final[dict[str, Asset]] = {
    "smollm2": Asset("models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "gemma3": Asset("models/gemma-3-270m-Q4_K_M.gguf"),
    "llama_cpp_sdist": Asset("vectors/llama_cpp_python-0.3.36.tar.gz"),
    "peer_v8": Asset("peer-v8", proof=".ready"),
    "peer_v7": Asset("peer-v7", proof="bin/ggml-rpc-server"),
    "backend_ops": Asset("backend-ops", proof="test-backend-ops"),
    "architectures": Asset("architectures", proof="test-llama-archs"),
    "clients": Asset("clients", proof=".ready"),
    "stories260k": Asset("models/stories260K.gguf", in_shared=True),
    "peer_suite": Asset("suite/run-peer-suite", in_shared=True),
}


def cache_dir() -> Path:
    """Return the folder that holds fetched assets: the same one that llama-serve caches in."""
    from app.cli.packaged_file import cache_dir as app_cache_dir

    return app_cache_dir(os.environ)


def shared_dir() -> Path:
    """Return the folder of data that is laid beside the checkout."""
    return Path(os.environ.get("LLAMA_SERVE_SHARED") or PROJECT_ROOT.parent / "shared")


def asset_path(name: str) -> Path:
    """Return where the asset lies or would lie."""
    row = ASSETS[name]
    return (shared_dir() if row.in_shared else cache_dir()) / row.path


def is_present(name: str) -> bool:
    """Return whether the asset can be used now."""
    return (asset_path(name) / ASSETS[name].proof).exists()


def _how_to_get(name: str) -> str:
    if ASSETS[name].in_shared:
        return f"expected at {asset_path(name)}; set LLAMA_SERVE_SHARED to the folder that has it"
    return f"fetch it with: python -m tests.fetch_assets {name}"


def asset(name: str) -> Path:
    """Return the path of the asset, or skip the test; under CI that skip is a failure."""
    if is_present(name):
        return asset_path(name)
    pytest.skip(f"asset {name!r} is absent: {_how_to_get(name)}")
