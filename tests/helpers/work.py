"""How much a function does, in lines of Python: the same number on every machine, however busy.

What C code does in one call is one line here.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object]) -> int:
    """Run `function` and return how many lines of Python were run for it in this thread."""
    n = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal n
        n += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return n
