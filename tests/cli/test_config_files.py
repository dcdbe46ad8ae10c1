"""Configuration files speak for flags as llama.cpp's do, and a wrong one is named."""

from pathlib import Path

import pytest

from app.cli.flags.config_files import config_paths, read_config_files
from app.cli.options import Command, read_command
from app.errors import ConfigError


def read(folder: Path, *texts: str, line: str = "--api-key k", **environ: str) -> Command:
    paths = [folder / f"{i}.ini" for i in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text.encode())
    return read_command(line.split(), environ, read_config_files(paths))


def test_keys_are_flags_without_dashes_or_variables(tmp_path: Path) -> None:
    command = read(
        tmp_path, "version = 1\nctx-size=7\nnp = 3\r\nLLAMA_ARG_PORT = 9\rmetrics = on\nno-ui = 1\n"
    )
    assert (command.engine.n_ctx, command.engine.n_parallel, command.server.port) == (7, 3, 9)
    assert command.server.endpoint_metrics and not command.server.ui
    assert command.warnings == ()


def test_a_switch_takes_a_word(tmp_path: Path) -> None:
    server = read(tmp_path, "slots = off\nno-ui = false\nLLAMA_ARG_NO_JINJA = true\n").server
    assert (server.endpoint_slots, server.ui, server.chat.jinja) == (False, True, False)


def test_comments_and_blank_lines_say_nothing(tmp_path: Path) -> None:
    text = "# port = 1\n  ; port = 2\n\n\t\n port = 3 ; three\nalias = a;b\n"
    server = read(tmp_path, text).server
    assert (server.port, server.aliases) == (3, ("a",))


def test_sections_of_other_programs_say_nothing(tmp_path: Path) -> None:
    text = "port = 1\n[*]\nport = 2\nctx-size = 5\n[some/model:Q4_0]\nport = 3\nnonsense = 4\n"
    command = read(tmp_path, text)
    assert (command.server.port, command.engine.n_ctx) == (1, 5)
    assert command.warnings == ()
    assert read(tmp_path, "[ default ]\nport = 6\n").server.port == 6


def test_the_later_file_the_variable_and_the_flag_count_more(tmp_path: Path) -> None:
    files = ("port = 1\nctx-size = 1\nub = 1\nb = 1\n", "ctx-size = 2\nub = 2\nb = 2\n")
    command = read(tmp_path, *files, line="-b 4 --api-key k", LLAMA_ARG_UBATCH="3")
    engine = command.engine
    assert command.server.port == 1
    assert (engine.n_ctx, engine.n_ubatch, engine.n_batch) == (2, 3, 4)
    assert command.warnings == ()


def test_a_key_that_only_other_programs_know_is_a_warning(tmp_path: Path) -> None:
    command = read(tmp_path, "color = on\nport = 4\n")
    assert command.server.port == 4
    (warning,) = command.warnings
    assert warning.startswith(f"{tmp_path / '0.ini'}: color is ignored")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = 1\nport\n", "line 2: expected"),
        ("[section\n", "line 1: expected"),
        ("port = many\n", "port 'many': expected an integer"),
        ("metrics = maybe\n", "metrics 'maybe': expected on or off"),
        ("no-ui = maybe\n", "no-ui 'maybe': expected on or off"),
        ("lora = x\n", "lora is not supported"),
    ],
)
def test_what_cannot_be_honoured_is_named_with_its_file(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "0.ini"))
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder, binary, large = (tmp_path / name for name in ("folder", "binary", "large"))
    folder.mkdir()
    binary.write_bytes(b"\xff")
    large.write_bytes(b"#" * (1 << 21))
    for path in (folder, binary, large):
        with pytest.raises(ConfigError, match=str(path)):
            read_config_files([path])


def test_files_that_are_not_there_say_nothing(tmp_path: Path) -> None:
    assert read_config_files([tmp_path / "none.ini", tmp_path / "no" / "none.ini"]) == ()


def test_where_the_files_are() -> None:
    system = Path("/etc/llama.cpp/config.ini")
    own = Path("/x/llama.cpp/config.ini")
    assert config_paths({"XDG_CONFIG_HOME": "/x", "HOME": "/h"}) == (system, own)
    assert config_paths({"HOME": "/h"}) == (system, Path("/h/.config/llama.cpp/config.ini"))
    assert config_paths({}) == (system,)
