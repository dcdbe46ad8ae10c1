"""The process that renders chat templates; started by `template_sandbox`, never imported.

Templates come with model files and are programs. They run here, in jinja2's immutable sandbox, and
the operating system holds what the sandbox does not: SIGALRM ends a render at its time limit even
inside one long call, a limit on address space stops `'a' * 10**10`, and no file can be written.
Requests and answers are frames on the socket that is standard input: 4 bytes of length, big-endian,
then JSON. The file imports nothing of this package, so that it starts fast.
"""

import contextlib
import json
import resource
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import lru_cache
from types import TracebackType
from typing import Final, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_HEADER: Final = struct.Struct(">I")
_ADDRESS_SPACE_BYTES: Final = 768 << 20
_KEPT_TEMPLATES: Final = 8

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


class _Refusal(Exception):
    """The template itself called raise_exception."""


class _TextlessUndefined(jinja2.Undefined):
    """A variable that nobody gave: added to text it is no text, as in llama.cpp."""

    # The base class promises to raise whatever it is added to.
    def __add__(self, other: object) -> object:  # type: ignore[override]
        return other if isinstance(other, str) else super().__add__(other)

    def __radd__(self, other: object) -> object:  # type: ignore[override]
        return other if isinstance(other, str) else super().__radd__(other)


class _GenerationBlock(Extension):
    """{% generation %} … {% endgeneration %}: marks the model's own words for training; here its
    content counts and the marks do not.
    """

    tags = {"generation"}  # noqa: RUF012 - the base class declares a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter as templates for language models expect it: no escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: object) -> list[object]:
    # Filters such as `map` give iterators, which templates take for lists.
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _as_it_is(value: object) -> object:
    return value


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_at(now: datetime) -> Callable[[str], str]:
    return now.strftime


def _new_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=_TextlessUndefined,
        extensions=[LoopControlExtension, _GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    # Marking text as safe would make what is added to it be escaped for HTML.
    environment.filters["safe"] = _as_it_is
    environment.globals["raise_exception"] = _raise_exception
    del environment.globals["lipsum"]
    return environment


_ENVIRONMENT: Final = _new_environment()


@lru_cache(maxsize=_KEPT_TEMPLATES)
def _compiled(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


def _template_line(traceback: TracebackType | None) -> int | None:
    """Return the innermost line of the template in a traceback."""
    line: int | None = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _failure(message: str, line: int | None) -> dict[str, JsonValue]:
    return {"error": message, "line": line}


def _render(request: dict[str, JsonValue]) -> dict[str, JsonValue]:
    context = cast(dict[str, JsonValue], request["context"])
    limit = cast(int, request["max_chars"])
    now = datetime.fromtimestamp(cast(float, request["now"]))
    parts: list[str] = []
    n_chars = 0
    for part in _compiled(cast(str, request["source"])).generate(
        strftime_now=_strftime_at(now), **context
    ):
        n_chars += len(part)
        if n_chars > limit:
            return _failure(f"the rendered prompt is longer than {limit} characters", None)
        parts.append(part)
    return {"text": "".join(parts)}


def _answer(request: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Render one request; whatever a template can raise becomes a message."""
    try:
        return _render(request)
    except jinja2.TemplateSyntaxError as error:
        return _failure(f"syntax error: {error.message}", error.lineno)
    except _Refusal as error:
        return _failure(str(error), _template_line(error.__traceback__))
    except MemoryError:
        return _failure("it needs too much memory", None)
    except RecursionError as error:
        return _failure("it is nested too deeply", _template_line(error.__traceback__))
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return _failure(f"{type(error).__name__}: {error}", _template_line(error.__traceback__))


def _receive(channel: socket.socket, n_bytes: int) -> bytes | None:
    """Return exactly `n_bytes`; None when the other end has closed."""
    data = bytearray()
    while len(data) < n_bytes:
        chunk = channel.recv(min(n_bytes - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


def _serve(channel: socket.socket) -> None:
    while (header := _receive(channel, _HEADER.size)) is not None:
        body = _receive(channel, _HEADER.unpack(header)[0])
        if body is None:
            return
        request = json.loads(body)
        signal.setitimer(signal.ITIMER_REAL, request["time_limit_s"])
        answer = json.dumps(_answer(request), ensure_ascii=False)
        encoded = answer.encode("utf-8", "surrogatepass")
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.sendall(_HEADER.pack(len(encoded)) + encoded)


def _limit_resources() -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, _ADDRESS_SPACE_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        # macOS refuses a limit on address space; the limits on time and output still hold there.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Serve until the other end closes."""
    _limit_resources()
    # A process inherits ignored and blocked signals; this one must end the process.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    with socket.socket(fileno=0) as channel:
        _serve(channel)


if __name__ == "__main__":
    main()
