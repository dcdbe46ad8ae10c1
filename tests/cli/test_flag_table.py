"""Every flag of llama-server is known by each of its names and its variable, and does something or
says why not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

from app.cli.flags.option import ENV_PREFIX, Option, Status
from app.cli.flags.parser import parse
from app.cli.flags.table import GROUPS, OPTIONS, usage
from app.cli.options import Command, read_command
from app.errors import ConfigError

TABLE: Final = Path(__file__).parent.parent / "data" / "llama_server_flags.txt"
COUNTS: Final = {"must": 91, "should": 87, "later": 77, "old": 3}

MUST_WITHOUT_EFFECT: Final = {
    "--load-mode": "files are always mapped",
    "--override-tensor": "placement follows -ts, -ngl and --device only",
    "--cpu-moe": "placement follows -ts, -ngl and --device only",
    "--n-cpu-moe": "placement follows -ts, -ngl and --device only",
    "--fit": "a model that does not fit is refused with the reason",
    "--fit-target": "a model that does not fit is refused with the reason",
    "--fit-ctx": "a model that does not fit is refused with the reason",
    "--no-cont-batching": "requests always join running batches",
    "--threads-http": "HTTP needs no threads",
}
REFUSED: Final = {
    # Answers would differ without them.
    *("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled"),
    "--control-vector-layer-range",
    # Another model would be served, or none.
    *("--model-url", "--docker-repo", "--embd-gemma-default", "--fim-qwen-1.5b-default"),
    *("--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec"),
    *("--fim-qwen-14b-spec", "--fim-qwen-30b-default", "--gpt-oss-20b-default"),
    *("--gpt-oss-120b-default", "--vision-gemma-4b-default", "--vision-gemma-12b-default"),
}
COMPANIONS: Final = {
    "--hf-file": "-hf a/b",
    "--hf-token": "-hf a/b",
    "--offline": "-hf a/b",
    "--no-escape": r"-r a\nb",
    "--ssl-key-file": "--ssl-cert-file {json}",
    "--ssl-cert-file": "--ssl-key-file {json}",
}
"""What a flag needs beside it to mean anything."""


@dataclass(frozen=True, slots=True)
class Row:
    section: str
    names: tuple[str, ...]
    env: str
    value: str

    @property
    def name(self) -> str:
        return self.names[-1]


def rows() -> list[Row]:
    found: list[Row] = []
    section = ""
    for line in TABLE.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("-"):
            names, env, value = (part.strip() for part in line.split("|", 2))
            found.append(Row(section, tuple(names.split()), env.strip("-"), value))
    return found


ROWS: Final = rows()
BY_NAME: Final = {name: o for o in OPTIONS for name in (*o.names, *o.off_names)}


def option(row: Row) -> Option:
    return BY_NAME[row.name]


def filled(text: str, folder: Path) -> list[str]:
    """Words with the names of files that exist filled in."""
    for place, content in (("file", "root ::= [a-z]\n"), ("json", '{"type": "null"}')):
        (folder / place).write_text(content)
        text = text.replace(f"{{{place}}}", str(folder / place))
    return text.replace("{folder}", str(folder)).split()


def words(row: Row, name: str, folder: Path) -> list[str]:
    return [name, *filled(row.value, folder)]


def around(row: Row, folder: Path) -> list[str]:
    return filled(COMPANIONS.get(row.name, "--api-key k"), folder)


def read(argv: list[str], environ: Mapping[str, str] | None = None) -> Command:
    return replace(read_command(argv, environ or {}), warnings=())


def without(row: Row, folder: Path) -> Command | None:
    """What is done when a flag is not said; None when its companion needs it."""
    try:
        return read(around(row, folder))
    except ConfigError:
        return None


def test_the_table_is_whole() -> None:
    assert {s: sum(row.section == s for row in ROWS) for s in COUNTS} == COUNTS
    assert len(ROWS) == sum(COUNTS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_name_of_a_flag_is_read(row: Row, tmp_path: Path) -> None:
    options = {BY_NAME[name].dest for name in row.names}
    assert len(options) == 1
    for name in row.names:
        said = words(row, name, tmp_path)
        if option(row).status is Status.REFUSED:
            with pytest.raises(ConfigError, match=f"^{name} is not supported: ."):
                parse(OPTIONS, said, {})
            continue
        parsed = parse(OPTIONS, said, {})
        assert [given.source for given in parsed.given] == [name]
        changed = parsed.given[0].value != option(row).default
        ignored = option(row).status is Status.IGNORED and changed
        assert len(parsed.warnings) == ignored
        assert all(warning.startswith(f"{name} is ignored: ") for warning in parsed.warnings)


def test_flags_without_effect_and_refused_ones_are_known() -> None:
    must = [row for row in ROWS if row.section == "must"]
    ignored = {row.name: option(row).note for row in must if option(row).status is Status.IGNORED}
    assert ignored == MUST_WITHOUT_EFFECT
    assert {row.name for row in ROWS if option(row).status is Status.REFUSED} == REFUSED


HONOURED: Final = [
    row for row in ROWS if option(row).status is Status.HONOURED and "--mmap" not in row.names
]


@pytest.mark.parametrize("row", HONOURED, ids=lambda row: row.name)
def test_a_flag_changes_what_is_done(row: Row, tmp_path: Path) -> None:
    plain = without(row, tmp_path)
    results = {
        name: read([*around(row, tmp_path), *words(row, name, tmp_path)]) for name in row.names
    }
    on = [results[name] for name in row.names if name in option(row).names]
    off = [results[name] for name in row.names if name in option(row).off_names]
    assert all(result == on[0] for result in on)
    assert all(result == off[0] for result in off)
    assert any(result != plain for result in (*on, *off))
    if on and off and option(row).default is not None:
        assert on[0] != off[0]


@pytest.mark.parametrize("row", [row for row in ROWS if row.env], ids=lambda row: row.env)
def test_a_variable_means_what_its_flag_means(row: Row, tmp_path: Path) -> None:
    known = option(row)
    assert known.env == row.env
    name = next(name for name in row.names if name in known.names)
    said = words(row, name, tmp_path)
    environ = {row.env: said[1] if row.value else "true"}
    if known.status is Status.REFUSED:
        with pytest.raises(ConfigError, match=row.env):
            parse(OPTIONS, (), environ)
        return
    assert read(around(row, tmp_path), environ) == read([*said, *around(row, tmp_path)])
    if known.off_names:
        off = {row.env.replace(ENV_PREFIX, f"{ENV_PREFIX}NO_"): "whatever"}
        expected = read([known.off_names[0], *around(row, tmp_path)])
        assert read(around(row, tmp_path), off) == expected
        assert read(around(row, tmp_path), {row.env: "off"}) == expected


def test_underscores_are_dashes_in_every_long_flag(tmp_path: Path) -> None:
    long = [(row, name) for row in HONOURED for name in row.names if name.startswith("--")]
    assert len(long) > 150
    for row, name in long:
        said = words(row, name, tmp_path)
        spelled = ["--" + name[2:].replace("-", "_"), *said[1:]]
        assert read([*around(row, tmp_path), *spelled]) == read([*around(row, tmp_path), *said]), (
            name
        )


def test_help_shows_each_flag_once_under_a_title() -> None:
    lines = usage().split("\n")
    titles = [line for line in lines if line.startswith("-----")]
    assert titles == [f"----- {group.title} -----" for group in GROUPS]
    sections = list(dict.fromkeys(t.strip("- ").partition(":")[0] for t in titles))
    assert sections[:3] == ["common params", "sampling params", "server params"]
    for row in HONOURED:
        head = ", ".join((*option(row).names, *option(row).off_names))
        assert sum(f"{line} ".startswith(f"{head} ") for line in lines) == 1, head
