"""Calls on a thread with a large stack.

llguidance's compilers recurse along the references of a grammar. A chain of references as long as
the size limits allow overflows a usual stack, which ends the process; on this one it fits about
three times over.
"""

from collections.abc import Callable
from threading import Lock, Thread, stack_size
from typing import Final, TypeVar

_STACK_BYTES: Final = 96 * 2**20
_CREATION: Final = Lock()

T = TypeVar("T")


def on_deep_stack(call: Callable[[], T]) -> T:
    """Return what the call returns, and raise what it raises. The memory is only reserved."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            failure.append(error)

    with _CREATION:
        before = stack_size(_STACK_BYTES)
        try:
            thread = Thread(target=run, name="grammar compiler")
            thread.start()
        finally:
            stack_size(before)
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
