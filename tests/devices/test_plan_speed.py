"""What it costs to run a plan, apart from the arithmetic: counted in calls, which no load changes.

Calls that a `partial` makes to torch itself do not count, so this is what Python adds to them.
"""

import sys
from types import FrameType

import torch

from tests.devices.decode_graph import TINY, ready
from tests.devices.graphs import cpu


def test_a_decode_step_of_smollm2_makes_less_than_a_call_for_each_node() -> None:
    torch.set_num_threads(1)
    device = cpu()
    graph = ready(device, TINY, 1, 256)
    n_nodes = len(list(graph.compute_nodes()))
    assert n_nodes == 574
    n_calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        device.compute(graph)
    finally:
        sys.setprofile(None)
    device.close()
    assert 0 < n_calls < n_nodes
