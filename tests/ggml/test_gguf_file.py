"""The open file: data without copies, pages that can be let go, errors for what is no file."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from app.errors import ModelFormatError
from app.ggml.gguf_file import GGUFFile, describe_types, unsupported_types
from tests.ggml.gguf_bytes import RawTensor, file_bytes, text_entry
from tests.helpers.assets import asset
from tests.helpers.work import lines_run

_HUGE_PAGE = 2 << 20


def _write(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return path


def _resident_pages(view: memoryview) -> int:
    """How many of the whole pages inside a window on a mapped file this process has mapped.

    Each page is asked for by itself: how many more the system maps around a page that is touched
    depends on the file's folios in the page cache, up to 2 MiB each.
    """
    address = np.frombuffer(view, np.uint8).ctypes.data
    first = -(-address // mmap.PAGESIZE)
    count = max(0, (address + len(view)) // mmap.PAGESIZE - first)
    with Path("/proc/self/pagemap").open("rb") as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * count), np.uint64)
    return int(np.count_nonzero(entries >> np.uint64(63)))


def test_data_is_a_read_only_window_on_the_file(tmp_path: Path) -> None:
    raw = file_bytes([], [RawTensor("x", (4,))], b"0123456789abcdef")
    with GGUFFile.open(_write(tmp_path, raw)) as gguf:
        view = gguf.data("x")
        assert view.readonly
        assert view.tobytes() == b"0123456789abcdef"
        assert gguf.size == len(raw)
        view.release()


def test_a_file_may_be_closed_while_a_view_is_held(tmp_path: Path) -> None:
    gguf = GGUFFile.open(_write(tmp_path, file_bytes([], [RawTensor("x")], b"0123456789abcdef")))
    view = gguf.data("x")
    gguf.close()
    gguf.close()
    assert view.tobytes() == b"0123456789abcdef"


def test_an_unknown_tensor_is_a_key_error(tmp_path: Path) -> None:
    with GGUFFile.open(_write(tmp_path, file_bytes())) as gguf, pytest.raises(KeyError):
        gguf.data("x")


@pytest.mark.parametrize("entries", [[], [text_entry("general.architecture", "")]])
def test_an_absent_architecture_is_named(tmp_path: Path, entries: list[bytes]) -> None:
    gguf = GGUFFile.open(_write(tmp_path, file_bytes(entries)))
    with gguf, pytest.raises(ModelFormatError, match=r"model\.gguf.*general\.architecture"):
        _ = gguf.architecture


def test_types_that_models_may_not_use_are_all_listed(tmp_path: Path) -> None:
    tensors = [
        RawTensor("a", (256,), 16, 0),
        RawTensor("b", (4,), 27, 96),
        RawTensor("c", (256,), 16, 128),
        RawTensor("d", (4,), 0, 224),
    ]
    raw = file_bytes([], tensors, bytes(256))
    with GGUFFile.open(_write(tmp_path, raw)) as gguf:
        found = unsupported_types(gguf)
    assert found == {"iq2_xxs": ["a", "c"], "i64": ["b"]}
    text = describe_types(found)
    assert "iq2_xxs (2 tensors, first 'a')" in text
    assert "i64 (1 tensors, first 'b')" in text
    assert "mxfp4" in text


def test_a_usable_model_has_no_unsupported_types() -> None:
    for name in ("smollm2", "gemma3"):
        with GGUFFile.open(asset(name)) as gguf:
            assert unsupported_types(gguf) == {}


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty.gguf").touch()
    for name, reason in [
        ("absent.gguf", "cannot be read"),
        ("empty.gguf", "0 bytes"),
        ("pipe", "not a regular file"),
        (".", "not a regular file"),
    ]:
        with pytest.raises(ModelFormatError, match=reason):
            GGUFFile.open(tmp_path / name)


def test_released_tensors_are_no_longer_resident_and_still_readable() -> None:
    with GGUFFile.open(asset("smollm2")) as gguf:
        first = {name: bytes(gguf.data(name)[:4]) for name in gguf.tensors}
        assert sum(sum(gguf.data(name)[::4096]) for name in gguf.tensors) > 0
        resident = sum(_resident_pages(gguf.data(name)) for name in gguf.tensors)
        assert resident * mmap.PAGESIZE > 80_000_000, "reading makes the file's pages resident"
        for name in gguf.tensors:
            gguf.release(name)
        assert [name for name in gguf.tensors if _resident_pages(gguf.data(name))] == []
        assert {name: bytes(gguf.data(name)[:4]) for name in gguf.tensors} == first


def test_part_of_a_tensor_is_released_without_the_rest() -> None:
    with GGUFFile.open(asset("smollm2")) as gguf:
        name = max(gguf.tensors, key=lambda name: gguf.tensors[name].nbytes)
        data = gguf.data(name)
        half = len(data) // 2
        assert sum(data[::4096]) > 0
        gguf.release(name, 0, half)
        assert _resident_pages(data[:half]) == 0
        kept = _resident_pages(data[half:]) * mmap.PAGESIZE
        assert kept >= half - _HUGE_PAGE, "a huge page that the cut runs through may go whole"


def test_gemma_with_its_262144_tokens_costs_a_few_lines_for_each() -> None:
    path = asset("gemma3")
    # Six for each, which is a fifth of a second.
    assert lines_run(lambda: GGUFFile.open(path).close()) < 8 * 262_144
