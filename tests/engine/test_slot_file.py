"""Files of slots: whole ones come back, any other is refused before a device sees it."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.kv_rows import HeldPositions
from app.engine.slot_file import Expected, check, read_rows, save
from app.errors import RequestError

TOKENS = (5, 1, 4, 1, 3)
HELD = HeldPositions(np.arange(5, dtype=np.int32), np.array([3, 4], np.int32))
MODEL = bytes(range(32))
ROWS = [bytes([1]) * 40, bytes([2]) * 40, bytes([3]) * 8]
EXPECTED = Expected(
    model=MODEL,
    n_vocab=6,
    n_ctx=8,
    row_sizes=[8, 8, 4],
    in_window=[False, False, True],
    is_finite=lambda i, data: data.find(b"\xff") < 0,
)


def written(tmp_path: Path, tokens: tuple[int, ...] = TOKENS, **changes: object) -> Path:
    path = tmp_path / "slot.bin"
    rows = changes.get("rows", ROWS)
    assert isinstance(rows, list)
    save(path, tokens, HELD, MODEL, rows)
    return path


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    saved = check(path, EXPECTED)
    assert saved.tokens == TOKENS
    assert saved.held.window.tolist() == [3, 4]
    assert list(read_rows(saved, EXPECTED)) == ROWS
    assert saved.size == path.stat().st_size
    assert list(tmp_path.iterdir()) == [path]


def test_the_frame_is_that_of_llama_server(tmp_path: Path) -> None:
    data = written(tmp_path).read_bytes()
    _, _, n_words, packed, _, n_tokens = struct.unpack_from("<4sIIiII", data)
    assert (n_words, packed, n_tokens) == (len(TOKENS) + 3, -1, len(TOKENS))
    assert struct.unpack_from("<5i", data, 24) == TOKENS


def test_a_plain_list_of_tokens_is_read_too(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:8] + struct.pack("<I", len(TOKENS)) + data[24:])
    assert check(path, EXPECTED).tokens == TOKENS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": bytes(32)}, "another model"),
        ({"n_vocab": 5}, "does not know"),
        ({"n_ctx": 4}, "does not fit"),
        ({"row_sizes": [8, 8, 8]}, "bytes, expected"),
    ],
)
def test_a_file_that_fits_something_else_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        check(written(tmp_path), replace(EXPECTED, **changes))  # type: ignore[arg-type]


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, rows=[b"\xff" * 40, *ROWS[1:]])
    with pytest.raises(RequestError, match="no numbers"):
        check(path, EXPECTED)


@pytest.mark.parametrize("what", ["absent", "folder", "empty"])
def test_what_is_no_file_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.touch()
    with pytest.raises(RequestError, match="Unable to restore slot"):
        check(path, EXPECTED)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200
)
@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_wrong_bit_anywhere_is_noticed(tmp_path: Path, at: int, bit: int) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(RequestError):
        check(path, EXPECTED)


@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100
)
@given(n=st.integers(0, 10**6), more=st.binary(max_size=8))
def test_a_file_of_another_length_is_noticed(tmp_path: Path, n: int, more: bytes) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    changed = data[: n % len(data)] + more
    path.write_bytes(changed)
    if changed != data:
        with pytest.raises(RequestError):
            check(path, EXPECTED)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_refusal(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "slot.bin"
    path.write_bytes(data)
    with pytest.raises(RequestError):
        check(path, EXPECTED)
