"""What it costs to run a plan, apart from the arithmetic."""

import torch

from tests.devices.decode_graph import TINY, best_cpu_seconds, ready
from tests.devices.graphs import cpu


def test_a_decode_step_of_smollm2_costs_under_six_milliseconds_of_calling() -> None:
    torch.set_num_threads(1)
    device = cpu()
    graph = ready(device, TINY, 1, 256)
    assert len(list(graph.compute_nodes())) == 574
    assert best_cpu_seconds(device, graph, 40) < 0.006
    device.close()
