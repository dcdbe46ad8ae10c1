"""An engine without a model, for tests of the HTTP room: it says what its script tells it to.

Its tokenizer has one token per byte. `Hold` in a script stands for a place where a real engine
would be busy: the generation waits there until it is cancelled or the test lets it go on.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from app.engine.facade import EngineState, EngineStats, ModelInfo, SlotInfo
from app.engine.request import (
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Piece,
    PromptProgress,
    SlotAction,
    SlotReport,
    Started,
    StopReason,
    Timings,
)
from app.sampling.logprobs import TokenLogprob, TokenLogprobs
from app.tokenizer.base import SpecialIds, Vocab

BOS, EOS = 256, 257
N_CTX = 512
_TOKENS = [bytes([i]).decode("utf-8", "surrogateescape") for i in range(256)] + ["<s>", "</s>"]


class ByteTokenizer:
    """Token i is byte i; 256 begins, 257 ends."""

    vocab = Vocab(
        tokens=_TOKENS,
        types=[1] * 256 + [3, 3],
        scores=[0.0] * 258,
        ids={text: i for i, text in enumerate(_TOKENS)},
        special=SpecialIds(bos=BOS, eos=EOS),
        eog=frozenset({EOS}),
        add_bos=True,
    )

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        ids = [*text.encode()]
        return [BOS, *ids] if add_special else ids

    def piece(self, token: int, *, special: bool) -> bytes:
        self.vocab.check_id(token)
        if token >= BOS:
            return self.vocab.tokens[token].encode() if special else b""
        return bytes([token])

    def decode(self, tokens: Iterable[int], *, special: bool) -> str:
        return b"".join(self.piece(t, special=special) for t in tokens).decode("utf-8", "replace")

    def is_eog(self, token: int) -> bool:
        return token == EOS


@dataclass(eq=False)
class Hold:
    """A pause: `reached` tells the test that it began, `release` ends it."""

    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


Step = Event | Hold
Script = Callable[[GenerationRequest], Iterator[Step]]


def timings(request: GenerationRequest, n_predicted: int) -> Timings:
    """Times as if every token took a millisecond."""
    return Timings(0, len(request.prompt), 5.0, n_predicted, float(n_predicted))


def logprobs(request: GenerationRequest, token: int) -> tuple[TokenLogprobs, ...]:
    """As many candidates as asked for, the token itself the best of them."""
    n = min(request.sampling.n_probs, 256)  # the vocabulary has no more
    top = tuple(TokenLogprob((token + i) % 256, -0.5 - i) for i in range(n))
    return (TokenLogprobs(token, -0.5, top),) if n else ()


def finished(request: GenerationRequest, n_decoded: int, reason: StopReason) -> Finished:
    """The end of a generation that decoded this many tokens."""
    return Finished(
        reason=reason,
        stopping_word="",
        truncated=False,
        has_new_line=False,
        n_prompt_tokens=len(request.prompt),
        n_cached_tokens=0,
        n_decoded=n_decoded,
        n_past=len(request.prompt) + n_decoded,
        timings=timings(request, n_decoded),
    )


def pieces(request: GenerationRequest, texts: Sequence[str]) -> Iterator[Piece]:
    """One piece for each text, of its bytes as tokens; stops at n_predict tokens."""
    n = 0
    for text in texts:
        tokens = tuple(text.encode())
        if 0 <= request.n_predict < n + len(tokens):
            return
        n += len(tokens)
        entries = tuple(e for token in tokens for e in logprobs(request, token))
        yield Piece(text, tokens, entries, n, timings(request, n))


def says(*texts: str) -> Script:
    """A script that says these texts one after the other, then ends by itself or by the limit."""

    def script(request: GenerationRequest) -> Iterator[Step]:
        yield Started(0, len(request.prompt), 0)
        if request.return_progress:
            total = len(request.prompt)
            yield PromptProgress(total, 0, 0, 0.0)
            yield PromptProgress(total, 0, total, 5.0)
        said = list(pieces(request, texts))
        yield from said
        reason = StopReason.EOS if len(said) == len(texts) else StopReason.LIMIT
        yield finished(request, said[-1].n_decoded if said else 0, reason)

    return script


class FakeGeneration:
    """Runs a script; `cancelled` is set when somebody gives it up."""

    def __init__(self, task: int, steps: Iterator[Step]) -> None:
        self.id = task
        self.cancelled = threading.Event()
        self._steps = steps

    async def events(self) -> AsyncIterator[Event]:
        for step in self._steps:
            if isinstance(step, Hold):
                step.reached.set()
                while not step.release.is_set() and not self.cancelled.is_set():
                    await asyncio.sleep(0.005)
                if self.cancelled.is_set():
                    await asyncio.Event().wait()
                continue
            yield step
            if isinstance(step, Finished | Failed):
                return

    def cancel(self) -> None:
        self.cancelled.set()


NO_STATS = EngineStats(0, 0, 0.0, 0, 0.0, 0, 0, 0, 0, 0)


class FakeEngine:
    """Implements `app.engine.facade.Engine`; `refuses` is raised by submit when set."""

    def __init__(self, script: Script | None = None, n_slots: int = 2) -> None:
        self.script = script or says("Hello", " there", "!")
        self.n_slots = n_slots
        self.state = EngineState.READY
        self.error = ""
        self.tokenizer = ByteTokenizer()
        self.model = ModelInfo(
            path="/models/fake.gguf",
            arch="fake",
            name="Fake",
            ftype="F32",
            vocab_type=1,
            n_vocab=258,
            n_ctx=N_CTX,
            n_ctx_train=2 * N_CTX,
            n_embd=8,
            n_params=1000,
            size=4000,
            chat_template=None,
        )
        self.refuses: Exception | None = None
        self.submitted: list[GenerationRequest] = []
        self.generations: list[FakeGeneration] = []
        self.slot_actions: list[SlotAction] = []
        self.slot_infos: tuple[SlotInfo, ...] = ()
        self.statistics = NO_STATS

    async def submit(self, request: GenerationRequest) -> FakeGeneration:
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append(request)
        generation = FakeGeneration(len(self.generations), self.script(request))
        self.generations.append(generation)
        return generation

    async def wake(self) -> None:
        if self.state is EngineState.SLEEPING:
            self.state = EngineState.READY

    async def slot_action(self, action: SlotAction) -> SlotReport:
        if self.refuses is not None:
            raise self.refuses
        self.slot_actions.append(action)
        return SlotReport(action.id_slot, 84, 4096, 1.5)

    def slots(self) -> tuple[SlotInfo, ...]:
        return self.slot_infos

    def stats(self) -> EngineStats:
        return self.statistics

    def stop(self) -> None:
        self.state = EngineState.STOPPED


def idle_slot(slot: int) -> SlotInfo:
    """A slot that never had a task."""
    return SlotInfo(slot, N_CTX, False, -1, 0, 0, 0, None, 0, -1, False, False)
