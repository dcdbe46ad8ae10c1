"""The output forms: each turns measurements into text as llama-bench (b11434) does, so that what
reads its output reads ours.

A form is three pure functions; `Report` writes what they return as soon as it is known.
"""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TextIO

from app.cli.benchmark.record import STREAMS, TYPES, Measurement
from app.version import BUILD_NUMBER, __version__

_SQL_TYPES: Final[dict[object, str]] = {
    str: "TEXT",
    bool: "INTEGER",
    int: "INTEGER",
    float: "REAL",
}
_TITLES: Final = {
    "model": ("model", -30),
    "size": ("size", 10),
    "params": ("params", 10),
    "backend": ("backend", -10),
    "n_gpu_layers": ("ngl", 3),
    "n_threads": ("threads", 7),
    "n_batch": ("n_batch", 7),
    "n_ubatch": ("n_ubatch", 8),
    "type_k": ("type_k", 6),
    "type_v": ("type_v", 6),
    "main_gpu": ("main_gpu", 10),
    "split_mode": ("sm", 6),
    "flash_attn": ("fa", 3),
    "devices": ("dev", -12),
    "tensor_split": ("ts", -12),
    "test": ("test", 15),
    "t/s": ("t/s", 20),
}
"""Columns of the table in order: title, and width, negative for text on the left."""

_ALWAYS: Final = frozenset({"model", "size", "params", "backend", "test", "t/s"})
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Layout:
    """Which record fields are written, and which columns the table has."""

    fields: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Form:
    """Text before the first row, of a row (which may be the first), and after the last."""

    header: Callable[[Layout], str]
    row: Callable[[Layout, Measurement, bool], str]
    footer: Callable[[Layout], str]


def layout_of(varied: frozenset[str], backends: str, *, has_streams: bool) -> Layout:
    """Choose fields and columns; the number of layers on devices only counts where there are any,
    the number of threads where there are none.
    """
    shown = _ALWAYS | varied | {"n_threads" if backends == "CPU" else "n_gpu_layers"}
    if backends == "CPU":
        shown -= {"n_gpu_layers"}
    return Layout(
        fields=tuple(name for name in TYPES if has_streams or name != STREAMS),
        columns=tuple(name for name in _TITLES if name in shown),
    )


def _plain(measured: Measurement, name: str) -> str:
    """A field as text: truth as 0 or 1, fractions with six digits."""
    value = getattr(measured.record, name)
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _csv_header(layout: Layout) -> str:
    return ",".join(layout.fields) + "\n"


def _csv_row(layout: Layout, measured: Measurement, is_first: bool) -> str:
    line = io.StringIO()
    writer = csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow(_plain(measured, name) for name in layout.fields)
    return line.getvalue()


def _json_items(layout: Layout, measured: Measurement) -> list[str]:
    items = []
    for name in layout.fields:
        value = getattr(measured.record, name)
        text = _plain(measured, name) if isinstance(value, float) else json.dumps(value)
        items.append(f'"{name}": {text}')
    times = ", ".join(map(str, measured.samples_ns))
    speeds = ", ".join(f"{speed:.6g}" for speed in measured.samples_ts)
    return [*items, f'"samples_ns": [ {times} ]', f'"samples_ts": [ {speeds} ]']


def _json_row(layout: Layout, measured: Measurement, is_first: bool) -> str:
    body = ",\n    ".join(_json_items(layout, measured))
    return ("" if is_first else ",\n") + "  {\n    " + body + "\n  }"


def _jsonl_row(layout: Layout, measured: Measurement, is_first: bool) -> str:
    return "{" + ", ".join(_json_items(layout, measured)) + "}\n"


def _sql_header(layout: Layout) -> str:
    columns = ",\n".join(f"  {name} {_SQL_TYPES[TYPES[name]]}" for name in layout.fields)
    return f"CREATE TABLE IF NOT EXISTS llama_bench (\n{columns}\n);\n\n"


def _sql_row(layout: Layout, measured: Measurement, is_first: bool) -> str:
    values = ", ".join(
        "'" + _plain(measured, name).replace("'", "''") + "'" for name in layout.fields
    )
    return f"INSERT INTO llama_bench ({', '.join(layout.fields)}) VALUES ({values});\n"


def _padded(text: str, width: int) -> str:
    return text.rjust(width) if width > 0 else text.ljust(-width)


def _md_header(layout: Layout) -> str:
    titles, rules = [], []
    for name in layout.columns:
        title, width = _TITLES[name]
        titles.append(_padded(title, width))
        rules.append("-" * (abs(width) - 1) + (":" if width > 0 else "-"))
    return f"| {' | '.join(titles)} |\n| {' | '.join(rules)} |\n"


def _md_row(layout: Layout, measured: Measurement, is_first: bool) -> str:
    cells = [_padded(_md_text(name, measured), _TITLES[name][1]) for name in layout.columns]
    return f"| {' | '.join(cells)} |\n"


def _md_text(name: str, measured: Measurement) -> str:
    record = measured.record
    match name:
        case "model":
            return record.model_type
        case "size":
            unit, word = (_MIB, "MiB") if record.model_size < _GIB else (_GIB, "GiB")
            return f"{record.model_size / unit:.2f} {word}"
        case "params":
            unit, word = (10**6, "M") if record.model_n_params < 10**9 else (10**9, "B")
            return f"{record.model_n_params / unit:.2f} {word}"
        case "backend":
            return record.backends
        case "test":
            return measured.test_name
        case "t/s":
            return f"{record.avg_ts:.2f} ± {record.stddev_ts:.2f}"
    return _plain(measured, name)


def _md_footer(layout: Layout) -> str:
    return f"\nbuild: {__version__} ({BUILD_NUMBER})\n"


def _nothing(layout: Layout) -> str:
    return ""


FORMS: Final = {
    "csv": Form(_csv_header, _csv_row, _nothing),
    "json": Form(lambda _: "[\n", _json_row, lambda _: "\n]\n"),
    "jsonl": Form(_nothing, _jsonl_row, _nothing),
    "md": Form(_md_header, _md_row, _md_footer),
    "sql": Form(_sql_header, _sql_row, _nothing),
}


class Report:
    """Writes one form to one stream; nothing before the first row."""

    def __init__(
        self, form: Form, stream: TextIO, varied: frozenset[str], *, has_streams: bool
    ) -> None:
        self._form = form
        self._stream = stream
        self._varied = varied
        self._has_streams = has_streams
        self._layout: Layout | None = None

    def add(self, measured: Measurement) -> None:
        """Write a row at once."""
        is_first = self._layout is None
        if self._layout is None:
            backends = measured.record.backends
            self._layout = layout_of(self._varied, backends, has_streams=self._has_streams)
            self._stream.write(self._form.header(self._layout))
        self._stream.write(self._form.row(self._layout, measured, is_first))
        self._stream.flush()

    def end(self) -> None:
        """Write what belongs behind the last row."""
        if self._layout is not None:
            self._stream.write(self._form.footer(self._layout))
            self._stream.flush()
