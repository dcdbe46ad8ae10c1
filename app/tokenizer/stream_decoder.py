"""Token bytes → text, a piece at a time, for streams.

One per generated sequence, used by the engine's output. A token may end inside a character: its
bytes are held back until the rest arrives, so no reader ever sees half a character. Bytes that
cannot become a character whatever follows turn into U+FFFD, an unfinished tail only at the end. The
joined text is the same however the bytes were cut, and the same as decoding them at once.
"""

import codecs
from typing import Final

_NEW_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class StreamDecoder:
    """Decodes one stream; not for use by two threads at once."""

    def __init__(self) -> None:
        self._decoder = _NEW_DECODER("replace")

    def push(self, data: bytes) -> str:
        """Return the text that `data` completes; "" while a character is unfinished."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end of the stream, broken, as U+FFFD; then start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    @property
    def held_back(self) -> bytes:
        """Return the bytes of a character that is not complete yet."""
        return self._decoder.getstate()[0]
