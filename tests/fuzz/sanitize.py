"""Builds the native core with AddressSanitizer, for fuzz runs only.

    python -m tests.fuzz.sanitize --level avx512 FOLDER
    python -m tests.fuzz --library FOLDER --target worker --minutes 10

The flags are those of setup.py but for the optimisation, which the checks would make very slow to
compile. The second command loads the sanitizer's runtime into each slice by itself.
"""

import argparse
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from unittest import mock

from tests.helpers.assets import PROJECT_ROOT

_COMPILER: Final = os.environ.get("CXX", "g++")
_REPLACED: Final = {"-O3", "-g0"}
_INSTEAD: Final = ("-O1", "-g1", "-fno-omit-frame-pointer")
# Loads from anywhere are meant: the levels' instructions allow them, and the portable one copies.
_ALLOWED: Final = ("-fno-sanitize=alignment,vptr",)
_OPTIONS: Final = "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0"


def build(level: str, folder: Path, jobs: int, checks: Sequence[str]) -> Path:
    """Compile what has changed and link one level; return the library's path. `checks` are names
    that -fsanitize knows.

    Raises: CalledProcessError.
    """
    with mock.patch("setuptools.setup"):
        settings = runpy.run_path(str(PROJECT_ROOT / "setup.py"))
    sanitize = [f"-fsanitize={','.join(checks)}", *_ALLOWED]
    flags = [flag for flag in settings["COMMON"] if flag not in _REPLACED]
    flags += [*settings["LEVELS"][level], *_INSTEAD, *sanitize]
    sources = sorted((PROJECT_ROOT / settings["FOLDER"]).glob("*.cpp"))
    newest_header = max(p.stat().st_mtime for p in (PROJECT_ROOT / settings["FOLDER"]).glob("*.h"))
    objects = folder / level
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        target = objects / f"{source.stem}.o"
        newest = max(source.stat().st_mtime, newest_header)
        if not target.exists() or target.stat().st_mtime < newest:
            command = [_COMPILER, *flags, "-c", str(source), "-o", str(target)]
            subprocess.run(command, check=True)
        return target

    with ThreadPoolExecutor(jobs) as pool:
        made = [str(path) for path in pool.map(compile_one, sources)]
    library = folder / f"_native_{level}.so"
    link = [_COMPILER, "-shared", "-pthread", *sanitize, *made, "-o", str(library)]
    subprocess.run(link, check=True)
    return library


def environment() -> dict[str, str]:
    """Return what a process that loads such a library must have in its environment."""
    return {
        # The second, so that the first finds what throws exceptions: Python itself is not C++.
        "LD_PRELOAD": f"{_file('libasan.so')} {_file('libstdc++.so')}",
        "ASAN_OPTIONS": _OPTIONS,
    }


def _file(name: str) -> str:
    command = [_COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Build one level."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sanitize", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--level", default="avx512")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--checks", nargs="+", default=["address"], help="or address undefined")
    args = parser.parse_args()
    sys.stdout.write(f"{build(args.level, args.folder, args.jobs, args.checks)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
