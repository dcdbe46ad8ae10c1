"""Two folds of one event stream: the chunks of a stream, or the body of a whole answer."""

from collections.abc import AsyncGenerator, Sequence

from sse_starlette.event import ServerSentEvent

from app.api.dialects.base import Dialect
from app.api.errors import ApiError
from app.api.feed import Feed
from app.api.json_value import Json, JsonObject, dump_json
from app.api.transcript import Transcript
from app.engine.request import Embedded, Failed, Started

DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


def sse_event(value: JsonObject, *, named: bool = False) -> bytes:
    """Return one server-sent event with a JSON object, named after the object's `type` or not."""
    name = str(value["type"]) if named else None
    return ServerSentEvent(data=dump_json(value).decode(), event=name, sep="\n").encode()


def error_event(error: ApiError, *, named: bool) -> bytes:
    """Return the event that ends a stream which fails."""
    kind: JsonObject = {"type": "error"} if named else {}
    return sse_event(kind | {"error": error.body()}, named=named)


async def whole_answer(feed: Feed, transcripts: Sequence[Transcript], dialect: Dialect) -> Json:
    """Wait for every generation and return the body. Raises: ApiError of the first that fails."""
    while not feed.is_over:
        numbered = await feed.next()
        if numbered is not None:
            transcripts[numbered.index].add(numbered.event)
    return dialect.whole(transcripts)


async def stream_answer(
    feed: Feed, transcripts: Sequence[Transcript], dialect: Dialect, ping_interval_s: int
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of an event stream, first b"" once a generation has begun.

    A comment is sent for every `ping_interval_s` of silence after that, if it is above 0.
    Raises: ApiError when a generation fails, before the first item or after any.
    """
    named, begun = dialect.names_events, False
    while not feed.is_over:
        numbered = await feed.next(ping_interval_s if begun and ping_interval_s > 0 else None)
        if numbered is None:
            if begun and not feed.is_over:
                yield PING
            continue
        transcripts[numbered.index].add(numbered.event)
        if not begun:
            begun = True
            yield b""
        if not isinstance(numbered.event, Started | Embedded | Failed):
            chunks = dialect.chunks(transcripts, numbered.index, numbered.event)
            if chunks:
                yield b"".join(sse_event(chunk, named=named) for chunk in chunks)
    yield b"".join(sse_event(chunk, named=named) for chunk in dialect.closing(transcripts))
    if dialect.says_done:
        yield DONE
