"""The ASGI response of every endpoint that generates: runs the requests, watches the client, sends.

Errors before the first event are plain JSON with their status; the headers of a stream go out as
soon as a slot was found. An error after that is an `error` event, and the stream ends without
[DONE]. When the client goes away, everything that it asked for is cancelled at once.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.assemble import error_event, stream_answer, whole_answer
from app.api.dialects.base import Dialect
from app.api.errors import to_api_error
from app.api.feed import ClientGoneError, Feed, open_feed, while_connected
from app.api.responses import json_response
from app.api.transcript import Transcript
from app.engine.facade import Engine

_log = logging.getLogger(__name__)

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(frozen=True, slots=True)
class Job:
    """What to run and how to tell about it; one transcript for each generation.

    `submitted` is told the task number of each.
    """

    engine: Engine
    transcripts: Sequence[Transcript]
    dialect: Dialect
    stream: bool
    ping_interval_s: int
    submitted: Callable[[int], None]


class GenerationResponse(Response):
    """Answers one HTTP request by running its job."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = self._job
        try:
            async with (
                while_connected(receive),
                open_feed(job.engine, [t.request for t in job.transcripts]) as feed,
            ):
                for generation in feed.generations:
                    job.submitted(generation.id)
                if job.stream:
                    await self._send_stream(feed, send)
                else:
                    body = await whole_answer(feed, job.transcripts, job.dialect)
            if job.stream:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            else:
                await json_response(body)(scope, receive, send)
        except ClientGoneError:
            _log.debug("client gone, generations cancelled")

    async def _send_stream(self, feed: Feed, send: Send) -> None:
        """Send all but the stream's end; what fails before its first item is raised, later it is
        an event.
        """
        job, begun = self._job, False
        items = stream_answer(feed, job.transcripts, job.dialect, job.ping_interval_s)
        try:
            async for data in items:
                if not begun:
                    begun = True
                    await send(
                        {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                    )
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except Exception as error:
            if not begun:
                raise
            data = error_event(to_api_error(error), named=job.dialect.names_events)
            await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await items.aclose()
