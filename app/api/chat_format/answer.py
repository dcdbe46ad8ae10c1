"""An answer as far as it was generated: events from its text, and their fold."""

from app.api.chat_format.events import ChatEvent, ChatMessage
from app.api.chat_format.parser import ParseOptions, new_session


class ParsedAnswer:
    """One choice of a chat answer, read while it grows."""

    def __init__(self, options: ParseOptions) -> None:
        self._session = new_session(options)
        self.message = ChatMessage()

    def feed(self, text: str) -> list[ChatEvent]:
        """Return what more text tells."""
        events = self._session.feed(text)
        self.message.add(events)
        return events

    def finish(self, *, cut: bool = False) -> list[ChatEvent]:
        """Return what is told by the answer being over; `cut` when a limit ended it."""
        events = self._session.finish(cut=cut)
        self.message.add(events)
        return events


def parse_answer(text: str, options: ParseOptions, *, cut: bool = False) -> ChatMessage:
    """Return what a whole answer says; `cut` when a limit ended it."""
    answer = ParsedAnswer(options)
    answer.feed(text)
    answer.finish(cut=cut)
    return answer.message
