"""Properties of the log lines and of the verbosity levels."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import ConfigError
from app.logs import TRACE, LineFormatter, LogSettings, level_of, setup_logging


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("app")
    before = (list(root.handlers), root.level, ours.level)
    yield
    logging.captureWarnings(False)
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.mark.parametrize(
    ("verbosity", "lowest"),
    [
        (1, logging.ERROR),
        (2, logging.WARNING),
        (3, logging.INFO),
        (4, TRACE),
        (5, logging.DEBUG),
        (2**31 - 1, logging.DEBUG),
    ],
)
def test_each_verbosity_lets_its_own_level_through(verbosity: int, lowest: int) -> None:
    assert level_of(verbosity) == lowest


@pytest.mark.parametrize("verbosity", [0, -1])
def test_verbosity_zero_lets_nothing_through(verbosity: int) -> None:
    assert level_of(verbosity) > logging.CRITICAL


def test_a_line_has_time_level_room_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(LogSettings())
    logging.getLogger("app.engine.loop").warning("slot %d is full", 3)
    line = capsys.readouterr().err
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} W engine\.loop: slot 3 is full\n", line)


def test_a_message_cannot_forge_a_second_line() -> None:
    record = logging.LogRecord("app.x", logging.INFO, "", 0, "a\nb\r\x1b[31m\x85", (), None)
    line = LineFormatter().format(record)
    assert line.endswith("x: a\\x0ab\\x0d\\x1b[31m\\x85")


def test_other_libraries_are_heard_from_warnings_up(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(LogSettings(verbosity=5))
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    logging.getLogger("app.x").debug("detail")
    said = capsys.readouterr().err
    assert "chatter" not in said
    assert "trouble" in said
    assert "detail" in said


def test_disabled_logging_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(LogSettings(disabled=True))
    logging.getLogger("app.x").error("nobody hears")
    assert capsys.readouterr() == ("", "")


def test_the_file_gets_the_same_lines_as_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.log"
    setup_logging(LogSettings(file=path))
    logging.getLogger("app.x").info("grüß dich")
    assert path.read_text("utf-8") == capsys.readouterr().err != ""


def test_an_impossible_log_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "no" / "x.log"))):
        setup_logging(LogSettings(file=tmp_path / "no" / "x.log"))
