"""Parses functionary 3.2: parts after `>>>`, each to `all` or to the function on its first line.

The first `>>>` is in the prompt already.
"""

from typing import Final

from app.api.chat_format.json_text import copy_value
from app.api.chat_format.reader import SPACE, Parse, Reader
from app.api.chat_format.tools import ToolUse
from app.api.chat_format.writers import CallWriter, TextWriter

PART: Final = ">>>"
_TO_ALL: Final = "all"


def parse_recipients(
    reader: Reader, content: TextWriter, calls: CallWriter, use: ToolUse
) -> Parse[None]:
    """Read the whole answer."""
    more = True
    while more:
        first: list[str] = []
        ended = yield from reader.until(("\n",), first.append)
        name = "".join(first)
        if name.strip(SPACE) in use.names:
            yield from copy_value(reader, calls.start(name.strip(SPACE)))
            yield from reader.space()
            more = yield from reader.skip(PART)
            continue
        if name != _TO_ALL:
            content.write(name + ended)
        more = bool((yield from reader.until((PART,), content.write)))
        if more:
            content.drop_space()
    content.write_all((yield from reader.peek(1)) and reader.rest())
