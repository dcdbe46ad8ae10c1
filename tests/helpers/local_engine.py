"""An engine without HTTP for tests: load, ask, stop."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from app.engine.config import EngineConfig
from app.engine.engine import LlamaEngine
from app.engine.facade import EngineState
from app.engine.request import Event, Failed, Finished, GenerationRequest, Piece
from app.sampling.logprobs import TokenLogprobs
from app.sampling.params import SamplingParams

LOAD_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Answer:
    """A generation as a whole."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finished: Finished


def answer_of(events: Sequence[Event]) -> Answer:
    """Fold events; a failed generation raises its error."""
    pieces = [event for event in events if isinstance(event, Piece)]
    end = events[-1]
    if isinstance(end, Failed):
        raise end.error
    assert isinstance(end, Finished)
    return Answer(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(probs for piece in pieces for probs in piece.logprobs),
        end,
    )


class Asker:
    """Blocking requests to a running engine."""

    def __init__(self, engine: LlamaEngine) -> None:
        self.engine = engine

    def tokens(self, prompt: str) -> list[int]:
        """Tokens of a plain prompt, BOS included where the model wants one."""
        return self.engine.tokenizer.encode(prompt, add_special=True, parse_special=True)

    def ask(self, *requests: GenerationRequest) -> list[Answer]:
        """Run requests at the same time."""

        async def one(request: GenerationRequest) -> Answer:
            generation = await self.engine.submit(request)
            return answer_of([event async for event in generation.events()])

        async def everything() -> list[Answer]:
            return list(await asyncio.gather(*(one(request) for request in requests)))

        return asyncio.run(everything())

    def greedy(self, prompt: str, n_predict: int, n_probs: int = 0) -> Answer:
        """The most probable continuation."""
        params = SamplingParams(temperature=0.0, n_probs=n_probs)
        request = GenerationRequest(tuple(self.tokens(prompt)), params, n_predict=n_predict)
        return self.ask(request)[0]


@contextmanager
def running_engine(config: EngineConfig) -> Iterator[Asker]:
    """Load a model, and stop the engine at the end."""
    engine = LlamaEngine(config)
    engine.start()
    try:
        state = engine.wait_settled(LOAD_TIMEOUT_S)
        assert state is EngineState.READY, engine.error
        yield Asker(engine)
    finally:
        engine.stop()


def small_run(path: Path, rpc: Sequence[str] = (), **changes: object) -> EngineConfig:
    """A small run of one model; `changes` are fields of EngineConfig."""
    base = EngineConfig(path, rpc_endpoints=tuple(rpc), n_ctx=2048, n_parallel=1, threads=1)
    return replace(base, **changes)  # type: ignore[arg-type]
