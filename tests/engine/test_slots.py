"""Which slot a task gets."""

from app.engine.slots import Slot, choose_slot, common_prefix
from tests.helpers.fake_task import make_task


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0


def test_the_slot_that_holds_most_of_the_prompt_is_taken() -> None:
    slots = [Slot(0, 64, tokens=[9]), Slot(1, 64, tokens=[1, 2, 3], last_used=7)]
    assert choose_slot(slots, make_task([1, 2, 3, 4]), 0.1) is slots[1]


def test_without_a_common_prefix_the_longest_unused_slot_is_taken() -> None:
    slots = [Slot(0, 64, tokens=[9], last_used=3), Slot(1, 64, tokens=[8], last_used=2)]
    assert choose_slot(slots, make_task([1, 2]), 0.1) is slots[1]


def test_a_named_slot_is_waited_for() -> None:
    slots = [Slot(0, 64), Slot(1, 64)]
    slots[1].task = make_task([5])
    assert choose_slot(slots, make_task([1], id_slot=1), 0.1) is None
    assert choose_slot(slots, make_task([1], id_slot=0), 0.1) is slots[0]
