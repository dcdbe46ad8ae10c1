"""Which steps may overlap: nobody reads or writes what another one writes before a barrier."""

from app.devices.native_steps import NODE_AREA, SOLO_WORK, ScratchAreas, set_flags
from app.ggml.op_params import Params
from app.kernels.cpu.layout import Kind, StepFlag
from app.kernels.cpu.step import Ref, StepSpec

LARGE = SOLO_WORK + 1
NE, NB = (25, 1, 1, 1), (4, 100, 100, 100)


def _step(target: int, *sources: int, work: int = LARGE) -> StepSpec:
    refs = [Ref(at, 100, NE, NB, 0) for at in (target, *sources)]
    return StepSpec(Kind.BINARY, 0, Params(), refs[0], tuple(refs[1:]), work)


def _free(*steps: StepSpec) -> list[bool]:
    set_flags(steps)
    return [bool(step.flags & StepFlag.FREE_END) for step in steps]


def test_steps_that_share_only_what_they_read_overlap() -> None:
    assert _free(_step(1000, 0), _step(2000, 0), _step(3000, 0)) == [True, True, False]


def test_a_reader_waits_for_its_writer() -> None:
    assert _free(_step(1000, 0), _step(2000, 1050)) == [False, False]


def test_a_writer_waits_for_readers_and_writers_of_its_bytes() -> None:
    assert _free(_step(1000, 0), _step(50, 3000)) == [False, False]
    assert _free(_step(1000, 0), _step(1099, 3000)) == [False, False]
    assert _free(_step(1000, 0), _step(1100, 3000)) == [True, False]


def test_a_step_waits_for_an_earlier_one_that_was_let_go() -> None:
    assert _free(_step(1000, 0), _step(2000, 0), _step(3000, 1000)) == [True, False, False]


def test_after_a_barrier_nothing_before_it_counts() -> None:
    steps = (_step(1000, 0), _step(2000, 1000), _step(3000, 1000))
    assert _free(*steps) == [False, True, False]


def test_small_steps_follow_one_another_on_one_thread_without_a_barrier() -> None:
    steps = (_step(1000, 0, work=10), _step(2000, 1000, work=10), _step(3000, 2000))
    assert _free(*steps) == [True, False, False]
    assert [bool(step.flags & StepFlag.SOLO) for step in steps] == [True, True, False]


def test_scratch_counts_as_memory() -> None:
    areas = ScratchAreas()
    steps = [_step(1000, 0), _step(2000, 0), _step(3000, 0)]
    steps[0].scratch, steps[1].scratch = areas.own(64), areas.own(128)
    steps[2].scratch = areas.slot(64)
    assert _free(*steps) == [False, True, False]


def test_areas_are_apart_and_as_large_as_their_largest_use() -> None:
    areas = ScratchAreas()
    first = [areas.slot(size).area for size in (10, 200, 30, 40, 500)]
    assert first[0] == first[4] and len(set(first)) == 4 and NODE_AREA not in first
    lasting = areas.lasting(7)
    areas.own(65)
    offsets, total = areas.offsets()
    ends = [offsets[i] + size for i, size in enumerate(areas.sizes)]
    assert all(end <= start for end, start in zip(ends, offsets[1:], strict=False))
    assert areas.sizes[first[0]] == 500 and areas.sizes[lasting.area] == 7
    assert total >= max(ends) and all(offset % 64 == 0 for offset in offsets)
