"""The items of a Responses answer, and the stream events that tell how one comes to be.

Names and fields are OpenAI's; ids of calls are llama-server's, `fc_` and `call_` before the call's
own (server-task.cpp). Every event of an item has the item's id and its place in the output.
"""

from dataclasses import dataclass, field

from app.api.dialects.blocks import Block, BlockEvent, BlockKind, Closed, Grown, Opened
from app.api.json_value import Json, JsonObject
from app.api.shapes import new_id

CALL_PREFIX = "call_"

_IDS = {BlockKind.REASONING: "rs_", BlockKind.TEXT: "msg_"}
_DELTAS = {
    BlockKind.REASONING: "response.reasoning_text",
    BlockKind.TEXT: "response.output_text",
    BlockKind.CALL: "response.function_call_arguments",
}
"""Kind of block → name of the events with its text, before `.delta` and `.done`."""


@dataclass(slots=True)
class Items:
    """The output items of one answer; the item of a block has the block's index."""

    all: list[JsonObject] = field(default_factory=list)
    _ids: list[str] = field(default_factory=list)
    _parts: list[JsonObject] = field(default_factory=list)

    def events(self, change: BlockEvent, logprobs: list[Json]) -> list[JsonObject]:
        """Return the events for a change of a block; `logprobs` are those of text that it adds."""
        match change:
            case Opened(block):
                return self._opened(block)
            case Grown(block, text):
                delta: JsonObject = {"type": f"{_DELTAS[block.kind]}.delta", "delta": text}
                if block.kind is BlockKind.TEXT:
                    delta["logprobs"] = logprobs
                return [delta | self._part_place(block)]
            case Closed(block, text):
                return self._closed(block, text)

    def add_logprobs(self, logprobs: list[Json]) -> None:
        """Put the log-probabilities of a whole answer where its first text stands."""
        if self._parts:
            self._parts[0]["logprobs"] = logprobs

    def break_off(self) -> None:
        """Mark the last item as incomplete."""
        if self.all:
            self.all[-1]["status"] = "incomplete"

    def _opened(self, block: Block) -> list[JsonObject]:
        prefix = _IDS.get(block.kind)
        self._ids.append(f"fc_{block.call_id}" if prefix is None else new_id(prefix))
        added: JsonObject = {
            "type": "response.output_item.added",
            "output_index": block.index,
            "item": self._item(block, "in_progress", [], ""),
        }
        if block.kind is not BlockKind.TEXT:
            return [added]
        part = _text_part("")
        place = self._part_place(block)
        return [added, {"type": "response.content_part.added", "part": part, **place}]

    def _closed(self, block: Block, text: str) -> list[JsonObject]:
        place = self._part_place(block)
        done: JsonObject = {"type": f"{_DELTAS[block.kind]}.done", **place}
        events = [done]
        content: list[Json] = []
        match block.kind:
            case BlockKind.REASONING:
                done["text"] = text
                content = [{"type": "reasoning_text", "text": text}]
            case BlockKind.TEXT:
                done |= {"text": text, "logprobs": []}
                part = _text_part(text)
                self._parts.append(part)
                content = [part]
                events.append({"type": "response.content_part.done", "part": part, **place})
            case BlockKind.CALL:
                done |= {"name": block.name, "arguments": text}
        item = self._item(block, "completed", content, text)
        self.all.append(item)
        events.append(
            {"type": "response.output_item.done", "output_index": block.index, "item": item}
        )
        return events

    def _part_place(self, block: Block) -> JsonObject:
        """Which item an event is about, and which part of it."""
        place: JsonObject = {"item_id": self._ids[block.index], "output_index": block.index}
        return place if block.kind is BlockKind.CALL else place | {"content_index": 0}

    def _item(self, block: Block, status: str, content: list[Json], text: str) -> JsonObject:
        item: JsonObject = {"id": self._ids[block.index], "status": status}
        match block.kind:
            case BlockKind.REASONING:
                return item | {
                    "type": "reasoning",
                    "summary": [],
                    "content": content,
                    "encrypted_content": "",
                }
            case BlockKind.TEXT:
                return item | {"type": "message", "role": "assistant", "content": content}
            case BlockKind.CALL:
                return item | {
                    "type": "function_call",
                    "call_id": CALL_PREFIX + block.call_id,
                    "name": block.name,
                    "arguments": text,
                }


def _text_part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
