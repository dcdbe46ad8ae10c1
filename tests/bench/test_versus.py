"""The comparison with stock llama.cpp: what it runs, and the arithmetic of its table."""

from pathlib import Path

import pytest

from tests.bench.versus import (
    Run,
    SpeedTest,
    batched_flags,
    bench_flags,
    main,
    parse_test,
    table_line,
)
from tests.helpers.assets import asset

RUN = Run(Path("m.gguf"), Path("peer"), 2, 3, pooled=False, flags=("-ub", "64"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pp512", (512, 0, 1, 0)),
        ("tg128", (0, 128, 1, 0)),
        ("pp512+tg128", (512, 128, 1, 0)),
        ("tg128x8", (0, 128, 8, 0)),
        ("tg64x4@d100", (0, 64, 4, 100)),
        ("pp16@d4096", (16, 0, 1, 4096)),
    ],
)
def test_names_are_read(name: str, expected: tuple[int, int, int, int]) -> None:
    assert parse_test(name) == SpeedTest(name, *expected)


@pytest.mark.parametrize(
    "name", ["", "pp", "tg0", "x8", "pp8x2", "pp8+tg8x2", "tg8 x2", "@d5", "pp8tg4", "+tg8", "pp8+"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"expected|several"):
        parse_test(name)


def test_both_programs_get_the_same_sizes() -> None:
    common = ["-m", "m.gguf", "-t", "2"]
    assert bench_flags(parse_test("pp8+tg4@d16"), RUN) == [
        *(*common, "-r", "3", "-p", "0", "-n", "0", "-pg", "8,4"),
        *("-d", "16", "-o", "jsonl", "-ub", "64"),
    ]
    assert batched_flags(parse_test("tg250x8@d7"), RUN) == [
        *(*common, "-c", str(8 * 512), "-npp", "7", "-ntg", "250", "-npl", "8"),
        *("--output-format", "jsonl", "-ub", "64"),
    ]


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    line = table_line("tg8", [10.0, 30.0, 24.0], [10.0, 10.0, 12.0])
    assert line == "| tg8 | 24.00 | 10.00 | 2.00 | 1.00 to 3.00 |"


@pytest.mark.peer_v7
@pytest.mark.parametrize("place", [["-t", "1"], ["--pool"]])
def test_a_round_on_a_small_model_gives_a_table(
    place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    model, peer = asset("stories260k"), asset("peer_v7")
    argv = ["-m", str(model), "--peer", str(peer), "--rounds", "1", "-r", "1", *place]
    assert main([*argv, "--tests", "pp8 tg4x2"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[4:]]
    assert [row[0] for row in rows] == ["| pp8", "| tg4x2"]
    assert all(float(cell) > 0 for row in rows for cell in row[1:4])
