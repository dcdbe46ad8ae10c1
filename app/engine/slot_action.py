"""Saves, restores and erases slots.

Any thread asks through `SlotActions.ask`; the engine thread does, between two steps, as soon as the
slot has no task. Files are written and read there, so that no cache changes under them; streams
wait meanwhile.
"""

import hashlib
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.engine import slot_file
from app.engine.errors import SlotFileError
from app.engine.kv_cache import CellsExhaustedError
from app.engine.loader import LoadedModel
from app.engine.request import SlotAction, SlotDeed, SlotReport
from app.engine.scheduler import Scheduler
from app.engine.slots import Slot
from app.engine.task import now
from app.errors import LlamaServeError, RequestError
from app.ggml.quants import dequantize_rows

_SAMPLE_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    action: SlotAction
    answer: "Future[SlotReport]"


class SlotActions:
    """The queue of actions; `ask` and `fail` may be called from any thread, the rest belongs to the
    engine's.
    """

    def __init__(self) -> None:
        self._asked: deque[_Asked] = deque()
        self._lock = threading.Lock()

    def ask(self, action: SlotAction) -> "Future[SlotReport]":
        """Queue an action; the future gives its report or its error."""
        answer: Future[SlotReport] = Future()
        with self._lock:
            self._asked.append(_Asked(action, answer))
        return answer

    @property
    def waiting(self) -> bool:
        """Whether anything was asked and not answered."""
        return bool(self._asked)

    def fail(self, error: Exception) -> None:
        """Answer whatever waits with an error."""
        for asked in self._taken():
            if asked.answer.set_running_or_notify_cancel():
                asked.answer.set_exception(error)

    def run(self, scheduler: Scheduler, model: LoadedModel) -> None:
        """Do what can be done now. Raises: DeviceLostError, after answering with it."""
        for asked in self._taken():
            slot = scheduler.slots[asked.action.id_slot]
            if slot.task is not None:
                with self._lock:
                    self._asked.append(asked)
            elif asked.answer.set_running_or_notify_cancel():
                try:
                    asked.answer.set_result(_do(asked.action, slot, scheduler, model))
                except (RequestError, SlotFileError) as error:
                    asked.answer.set_exception(error)
                except LlamaServeError as error:
                    asked.answer.set_exception(error)
                    raise

    def _taken(self) -> list[_Asked]:
        with self._lock:
            taken = list(self._asked)
            self._asked.clear()
        return taken


def _do(action: SlotAction, slot: Slot, scheduler: Scheduler, model: LoadedModel) -> SlotReport:
    start = now()
    n_tokens, n_bytes = len(slot.tokens), 0
    match action.deed:
        case SlotDeed.SAVE:
            rows = model.kv_rows
            n_bytes = slot_file.save(
                action.path, slot.tokens, rows.held(slot.id), fingerprint(model), rows.read(slot.id)
            )
        case SlotDeed.ERASE:
            scheduler.forget(slot)
        case SlotDeed.RESTORE:
            scheduler.forget(slot)
            n_bytes = _restore(action.path, slot, scheduler, model)
            n_tokens = len(slot.tokens)
    return SlotReport(slot.id, n_tokens, n_bytes, 1e3 * (now() - start))


def _restore(path: Path, slot: Slot, scheduler: Scheduler, model: LoadedModel) -> int:
    rows = model.kv_rows
    expected = _expected(slot, model)
    saved = slot_file.check(path, expected)
    scheduler.clear_idle(len(saved.tokens))
    try:
        rows.write(slot.id, saved.held, slot_file.read_rows(saved, expected))
    except CellsExhaustedError as error:
        raise RequestError(f"Unable to restore slot: {error}") from error
    except RequestError:
        scheduler.forget(slot)
        raise
    slot.tokens.extend(saved.tokens)
    return saved.size


def _expected(slot: Slot, model: LoadedModel) -> slot_file.Expected:
    tensors = model.kv_rows.tensors

    def is_finite(i: int, data: bytes) -> bool:
        tensor = tensors[i].tensor
        values = dequantize_rows(tensor.type, data, tensor.ne[0])
        return bool(np.isfinite(values).all())

    return slot_file.Expected(
        model=fingerprint(model),
        n_vocab=model.hparams.n_vocab,
        n_ctx=slot.n_ctx,
        row_sizes=[item.row_bytes for item in tensors],
        in_window=[item.is_window for item in tensors],
        is_finite=is_finite,
    )


def fingerprint(model: LoadedModel) -> bytes:
    """Return 32 bytes that differ where keys and values would: other weights, sizes, rotation or
    cache types. Of each weight only its beginning is looked at.
    """
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr(model.hparams).encode())
    digest.update(repr([(t.tensor.type, t.tensor.ne[0]) for t in model.kv_rows.tensors]).encode())
    for name, info in sorted(model.gguf.tensors.items()):
        digest.update(f"{name} {info.type} {info.ne}".encode())
        digest.update(bytes(model.gguf.data(name)[:_SAMPLE_BYTES]))
    return digest.digest()
