"""What outlives a request: saved slots, remembered prompts, a model that sleeps."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.config import CpuExecutor, EngineConfig
from app.engine.engine import LlamaEngine
from app.engine.errors import SlotFileError
from app.engine.facade import EngineState
from app.engine.request import GenerationRequest, SlotAction, SlotDeed, SlotReport
from app.errors import RequestError
from app.ggml.types import GGMLType
from app.sampling.params import SamplingParams
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.local_engine import Asker, running_engine, small_run
from tests.helpers.server_process import own_workers
from tests.helpers.tiny_gguf import TinyConfig, write_tiny

STORY = "Once upon a time there was a little girl named Lily. She had a red ball and a dog."
OTHER = "Tom was sad."


def config(path: Path, **changes: object) -> EngineConfig:
    base = {"cpu_executor": CpuExecutor.REFERENCE, "warmup": False, "n_parallel": 2}
    return small_run(path, (), **(base | changes))


def request(asker: Asker, prompt: str, **changes: object) -> GenerationRequest:
    base = GenerationRequest(
        tuple(asker.tokens(prompt)), SamplingParams(temperature=0.0), n_predict=12
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def act(asker: Asker, deed: SlotDeed, slot: int, path: Path = Path()) -> SlotReport:
    return asyncio.run(asker.engine.slot_action(SlotAction(deed, slot, path)))


@pytest.fixture(scope="module")
def stories() -> Path:
    return asset("stories260k")


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def path(
    request: pytest.FixtureRequest, stories: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Stories, and a tiny Gemma 3 whose window is shorter than the prompts."""
    if request.param == "llama":
        return stories
    target = tmp_path_factory.mktemp("window") / "gemma3.gguf"
    return write_tiny(target, stories, TinyConfig("gemma3"))


def test_a_restored_slot_goes_on_as_the_saved_one(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "slot.bin"
    with running_engine(config(path, n_ubatch=16, n_batch=16)) as asker:
        first = request(asker, STORY, id_slot=0)
        told = asker.ask(first)[0]
        saved = act(asker, SlotDeed.SAVE, 0, file)
        assert saved.n_tokens == len(first.prompt) + 11
        assert saved.n_bytes == file.stat().st_size
        longer = replace(first, prompt=(*first.prompt, *told.tokens))
        expected = asker.ask(replace(longer, cache_prompt=False))[0]
    with running_engine(config(path, n_ubatch=16, n_batch=16)) as asker:
        asker.ask(request(asker, OTHER, id_slot=1))
        restored = act(asker, SlotDeed.RESTORE, 1, file)
        assert (restored.n_tokens, restored.n_bytes) == (saved.n_tokens, saved.n_bytes)
        again = asker.ask(replace(longer, id_slot=1))[0]
    assert again.finished.n_cached_tokens == saved.n_tokens
    assert again.tokens == expected.tokens


def test_a_slot_saved_on_one_placement_is_restored_on_another(
    stories: Path, tmp_path: Path
) -> None:
    file = tmp_path / "slot.bin"
    with own_workers(2) as workers, running_engine(config(stories, rpc_endpoints=workers)) as asker:
        story = request(asker, STORY, id_slot=0)
        asker.ask(story)
        act(asker, SlotDeed.SAVE, 0, file)
    with running_engine(config(stories)) as asker:
        cold = asker.ask(replace(story, id_slot=1))[0]
        act(asker, SlotDeed.RESTORE, 0, file)
        warm = asker.ask(story)[0]
    assert warm.finished.n_cached_tokens == len(story.prompt) - 1
    assert warm.tokens == cold.tokens


def test_an_erased_slot_remembers_nothing(stories: Path) -> None:
    with running_engine(config(stories)) as asker:
        story = request(asker, STORY, id_slot=0)
        asker.ask(story)
        assert act(asker, SlotDeed.ERASE, 0).n_tokens == len(story.prompt) + 11
        assert act(asker, SlotDeed.ERASE, 0).n_tokens == 0
        assert asker.ask(story)[0].finished.n_cached_tokens == 0


def test_what_does_not_fit_the_model_is_refused_and_the_slot_empty(
    stories: Path, tmp_path: Path
) -> None:
    file, cut = tmp_path / "slot.bin", tmp_path / "cut.bin"
    with running_engine(config(stories)) as asker:
        asker.ask(request(asker, STORY, id_slot=0))
        act(asker, SlotDeed.SAVE, 0, file)
        cut.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(RequestError, match="Unable to restore slot"):
            act(asker, SlotDeed.RESTORE, 0, cut)
        assert asker.ask(request(asker, STORY, id_slot=0))[0].finished.n_cached_tokens == 0
        with pytest.raises(RequestError, match="Invalid slot ID"):
            act(asker, SlotDeed.ERASE, 2)
        with pytest.raises(SlotFileError, match="Unable to save slot"):
            act(asker, SlotDeed.SAVE, 0, tmp_path / "absent" / "slot.bin")
        assert asker.ask(request(asker, OTHER))[0].text
    with (
        running_engine(config(stories, cache_type_k=GGMLType.F32)) as asker,
        pytest.raises(RequestError, match="another type of cache"),
    ):
        act(asker, SlotDeed.RESTORE, 0, file)


def test_a_prompt_that_no_slot_holds_comes_back_from_memory(path: Path) -> None:
    with running_engine(config(path, n_parallel=1, cache_ram_mib=64)) as asker:
        story = request(asker, STORY)
        cold = asker.ask(story)[0]
        asker.ask(request(asker, OTHER))
        again = asker.ask(story)[0]
    assert again.finished.n_cached_tokens == len(story.prompt) - 1
    assert again.tokens == cold.tokens


def test_with_one_pool_idle_slots_go_to_memory(stories: Path) -> None:
    with running_engine(config(stories, kv_unified=True, cache_ram_mib=64)) as asker:
        story = request(asker, STORY, id_slot=0)
        asker.ask(story)
        asker.ask(request(asker, OTHER, id_slot=1))
        assert act(asker, SlotDeed.ERASE, 0).n_tokens == 0
        back = asker.ask(replace(story, id_slot=1))[0]
    assert back.finished.n_cached_tokens == len(story.prompt) - 1


@pytest.fixture
def sleeper(stories: Path) -> Iterator[LlamaEngine]:
    """An engine that has fallen asleep."""
    with running_engine(config(stories, sleep_idle_s=0.05)) as asker:
        eventually(lambda: asker.engine.state is EngineState.SLEEPING)
        yield asker.engine


def test_a_sleeping_engine_still_knows_its_model(sleeper: LlamaEngine) -> None:
    assert sleeper.model.n_vocab == len(sleeper.tokenizer.vocab.tokens)
    assert sleeper.n_slots == 2
    assert sleeper.stats().predicted_tokens == 0
    assert not any(slot.is_processing for slot in sleeper.slots())
    assert sleeper.state is EngineState.SLEEPING


def test_requests_wake_an_engine_and_all_are_served(sleeper: LlamaEngine) -> None:
    asker = Asker(sleeper)
    answers = asker.ask(*(request(asker, STORY) for _ in range(3)))
    assert len({answer.text for answer in answers}) == 1
    eventually(lambda: sleeper.state is EngineState.SLEEPING)
    asyncio.run(sleeper.wake())
    assert sleeper.error == ""


def test_an_engine_sleeps_and_wakes_over_a_pool(stories: Path) -> None:
    with (
        own_workers(2) as endpoints,
        running_engine(config(stories, sleep_idle_s=0.2, rpc_endpoints=tuple(endpoints))) as asker,
    ):
        before = asker.ask(request(asker, STORY))[0]
        eventually(lambda: asker.engine.state is EngineState.SLEEPING)
        asleep = asker.engine.stats().workers
        assert [worker.endpoint for worker in asleep] == endpoints
        assert all(worker.bytes_sent > 0 for worker in asleep)
        assert asker.ask(request(asker, STORY))[0].text == before.text


def test_a_sleeping_engine_can_be_stopped(sleeper: LlamaEngine) -> None:
    sleeper.stop()
    assert sleeper.state is EngineState.STOPPED


def test_a_slot_of_other_weights_is_refused(stories: Path, tmp_path: Path) -> None:
    one, other = (
        write_tiny(tmp_path / f"{seed}.gguf", stories, TinyConfig("llama", seed=seed))
        for seed in (1, 2)
    )
    file = tmp_path / "slot.bin"
    with running_engine(config(one)) as asker:
        asker.ask(request(asker, OTHER, id_slot=0))
        act(asker, SlotDeed.SAVE, 0, file)
    with (
        running_engine(config(other)) as asker,
        pytest.raises(RequestError, match="another model"),
    ):
        act(asker, SlotDeed.RESTORE, 0, file)
