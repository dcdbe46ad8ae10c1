"""Damaged, foreign and hostile files: a typed error that names the place, or success; nothing else,
and no memory beyond the file's own size.
"""

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ModelFormatError, UnsupportedError
from app.ggml.gguf_file import GGUFFile
from app.ggml.gguf_parse import parse_gguf
from tests.ggml.gguf_bytes import RawTensor, entry, file_bytes, string, text_entry, u32_entry
from tests.helpers.assets import asset
from tests.helpers.work import lines_run

GOOD_ENTRIES = [
    text_entry("general.architecture", "llama"),
    u32_entry("llama.block_count", 1),
    entry("list", 9, struct.pack("<IQ", 8, 2) + string("a") + string("bc")),
    entry("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
    entry("on", 7, b"\x01"),
    entry("half", 6, struct.pack("<f", 0.5)),
]
GOOD_TENSORS = [RawTensor("x", (4, 2), 0, 0), RawTensor("y", (32,), 8, 32)]
GOOD = file_bytes(GOOD_ENTRIES, GOOD_TENSORS, bytes(32 + 34))

BIG = 1 << 40


def _array(element: int, count: int, data: bytes = b"") -> bytes:
    return entry("k", 9, struct.pack("<IQ", element, count) + data)


WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "24 bytes, but only 0"),
    "magic only": (b"GGUF", "header"),
    "half a magic": (b"GG", "header"),
    "other magic": (b"\x7fELF" + bytes(60), "not a GGUF file"),
    "html": (b"<!DOCTYPE html><html>404</html>", "HTML"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-LFS"),
    "json": (b'{"error": "not found"} and more text', "JSON"),
    "old ggml": (b"lmgg" + bytes(60), "before GGUF"),
    "key count 2^63": (file_bytes(n_keys=1 << 63), "key count 9223372036854775808"),
    "tensor count 2^63": (file_bytes(n_tensors=1 << 63), "tensor count"),
    "key longer than file": (file_bytes([struct.pack("<Q", 60_000)], n_keys=1, data=bytes(9)), ""),
    "key length 2^40": (file_bytes([struct.pack("<Q", BIG) + bytes(9)]), "at most 65535"),
    "string of 2^40": (
        file_bytes([entry("k", 8, struct.pack("<Q", BIG))], data=bytes(40)),
        f"key 'k' at byte 45: expected {BIG} bytes",
    ),
    "array of 2^60 numbers": (file_bytes([_array(4, 1 << 60)], data=bytes(99)), "key 'k', array"),
    "array of 2^60 strings": (file_bytes([_array(8, 1 << 60)], data=bytes(99)), "key 'k', array"),
    "array count overflows 64 bits": (file_bytes([_array(10, (1 << 61) + 1)]), "key 'k', array"),
    "array whose last string is too long": (
        file_bytes([_array(8, 2, string("a") + struct.pack("<Q", BIG))]),
        "string 1 of 2",
    ),
    "nested array": (file_bytes([_array(9, 1)], data=bytes(40)), "array of arrays"),
    "unknown value type": (file_bytes([entry("k", 13, bytes(8))]), "value type 13"),
    "unknown element type": (file_bytes([_array(99, 1, bytes(8))]), "value type 99"),
    "empty key": (file_bytes([text_entry("", "x")]), "key 0 is empty"),
    "same key twice": (file_bytes([u32_entry("k", 1), u32_entry("k", 2)]), "'k' stands twice"),
    "key not UTF-8": (file_bytes([string(b"\xff\xfe") + bytes(9)]), "expected UTF-8"),
    "string not UTF-8": (file_bytes([entry("k", 8, string(b"\xff"))]), "key 'k'"),
    "list not UTF-8": (file_bytes([_array(8, 1, string(b"\xff"))]), "key 'k', string 0"),
    "alignment 0": (file_bytes([u32_entry("general.alignment", 0)]), "power of two"),
    "alignment 48": (file_bytes([u32_entry("general.alignment", 48)]), "power of two"),
    "alignment is text": (file_bytes([text_entry("general.alignment", "32")]), "UINT32"),
    "alignment 2^31": (
        file_bytes([u32_entry("general.alignment", 1 << 31)], [RawTensor("x")], bytes(64)),
        "truncated",
    ),
    "zero dimension": (file_bytes([], [RawTensor("x", (4, 0))]), "tensor 'x': shape [4, 0, 1, 1]"),
    "five dimensions": (file_bytes([], [RawTensor("x", (1,) * 5)]), "5 dimensions"),
    "2^32-1 dimensions": (
        file_bytes(
            [string("x") + struct.pack("<I", 2**32 - 1)], n_keys=0, n_tensors=1, data=bytes(60)
        ),
        "tensor 'x': 4294967295 dimensions",
    ),
    "product overflows": (
        file_bytes([], [RawTensor("x", (1 << 32, 1 << 32, 1 << 32))], bytes(64)),
        "bytes; tensor 'x'",
    ),
    "dimension 2^64-1": (file_bytes([], [RawTensor("x", (2**64 - 1,))], bytes(64)), "tensor 'x'"),
    "row of half a block": (
        file_bytes([], [RawTensor("x", (31,), 8)], bytes(64)),
        "multiple of 32",
    ),
    "offset 2^64-32": (file_bytes([], [RawTensor("x", offset=2**64 - 32)], bytes(64)), "ends past"),
    "offset not aligned": (file_bytes([], [RawTensor("x", offset=8)], bytes(64)), "multiple of 32"),
    "empty tensor name": (file_bytes([], [RawTensor("")], bytes(64)), "empty name"),
    "name of 64 bytes": (file_bytes([], [RawTensor("n" * 64)], bytes(64)), "at most 63"),
    "same tensor twice": (
        file_bytes([], [RawTensor("x"), RawTensor("x", offset=32)], bytes(64)),
        "'x' stands twice",
    ),
    "overlapping tensors": (
        file_bytes([], [RawTensor("x", (16,)), RawTensor("y", offset=32)], bytes(64)),
        "tensor 'y' at byte",
    ),
    "two tensors in one place": (
        file_bytes([], [RawTensor("x"), RawTensor("y")], bytes(64)),
        "overlaps 'x'",
    ),
    "data one byte short": (GOOD[:-1], f"{len(GOOD) - 1} of {len(GOOD)} bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    raw, reason = WRONG[name]
    with pytest.raises(ModelFormatError) as caught:
        parse_gguf(raw, "dir/model.gguf")
    assert str(caught.value).startswith("dir/model.gguf: ")
    assert reason in str(caught.value)


UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    "big endian": (b"GGUF\0\0\0\x03" + bytes(40), "big-endian"),
    "version 1": (file_bytes(version=1), "version 1, expected 2 or 3"),
    "version 4": (file_bytes(version=4), "version 4, expected 2 or 3"),
    "one of three parts": (file_bytes([entry("split.count", 2, b"\x03\x00")]), "split over 3"),
    "types that ggml has not": (
        file_bytes([], [RawTensor("a", type=99), RawTensor("b", type=4), RawTensor("c", type=27)]),
        "number 99 (1 tensors, first 'a'), q4_2 (1 tensors, first 'b'), i64 (1 tensors, first 'c')",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_foreign_variant_is_refused_by_name(name: str) -> None:
    raw, reason = UNSUPPORTED[name]
    with pytest.raises(UnsupportedError) as caught:
        parse_gguf(raw, "model.gguf")
    assert reason in str(caught.value)


def test_the_good_file_is_good() -> None:
    parsed = parse_gguf(GOOD, "m")
    assert parsed.metadata["list"] == ["a", "bc"]
    assert list(parsed.tensors) == ["x", "y"]
    v2 = parse_gguf(file_bytes(GOOD_ENTRIES, GOOD_TENSORS, bytes(66), version=2), "m")
    assert v2.tensors == parsed.tensors


def test_a_file_cut_at_any_byte_is_refused_with_both_sizes() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(ModelFormatError, match=rf"\b{size}\b"):
            parse_gguf(GOOD[:size], "m")


@pytest.mark.parametrize("keep", [0, 3, 24, 1_000_000, -1])
def test_a_real_model_cut_short_is_refused(keep: int, tmp_path: Path) -> None:
    source = asset("smollm2")
    size = keep if keep >= 0 else source.stat().st_size + keep
    path = tmp_path / "cut.gguf"
    with source.open("rb") as whole, path.open("wb") as cut:
        os.sendfile(cut.fileno(), whole.fileno(), 0, size)
        cut.truncate(size)
    with pytest.raises(ModelFormatError, match=rf"cut\.gguf.*\b{size}\b"):
        GGUFFile.open(path)


def test_a_hostile_file_costs_no_memory_and_no_time() -> None:
    files = [raw for raw, _ in WRONG.values()]

    def refuse() -> None:
        for raw in files:
            with pytest.raises(ModelFormatError):
                parse_gguf(raw, "m")

    tracemalloc.start()
    refuse()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000
    assert lines_run(refuse) < 1000 * len(files)


def _typed_or_fine(raw: bytes) -> None:
    try:
        parsed = parse_gguf(raw, "m")
    except (ModelFormatError, UnsupportedError):
        return
    for info in parsed.tensors.values():
        assert parsed.data_offset <= info.offset
        assert info.offset + info.nbytes <= len(raw)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), max_size=6))
def test_changed_bytes_give_a_typed_error_or_a_sound_result(changes: list[tuple[int, int]]) -> None:
    raw = bytearray(GOOD)
    for at, value in changes:
        raw[at] = value
    _typed_or_fine(bytes(raw))


_WORDS = st.sampled_from([0, 1, 31, 33, 2**31, 2**32 - 1, 2**40, 2**60, 2**63, 2**64 - 1])


@settings(max_examples=400, deadline=None)
@given(at=st.integers(4, len(GOOD) - 8), word=_WORDS, width=st.sampled_from([4, 8]))
def test_extreme_numbers_anywhere_give_a_typed_error_or_a_sound_result(
    at: int, word: int, width: int
) -> None:
    number = (word & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    _typed_or_fine(GOOD[:at] + number + GOOD[at + width :])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_give_a_typed_error(tail: bytes, with_header: bool) -> None:
    _typed_or_fine((b"GGUF\3\0\0\0" if with_header else b"") + tail)
