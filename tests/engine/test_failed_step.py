"""A step that a worker refuses costs its requests and nothing more."""

import pytest
import torch

from app.devices.base import DeviceInfo, DeviceKind
from app.devices.torch_device import TorchDevice
from app.engine.facade import EngineState
from app.errors import OutOfMemoryError
from app.ggml.graph import Graph
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.rpc_link import serving

PROMPT = "Once upon a time"


def test_the_request_names_the_worker_and_the_next_one_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.set_num_threads(1)
    device = TorchDevice(DeviceInfo("CPU", "test", DeviceKind.CPU), torch.device("cpu"))
    compute, full = device.compute, False

    def sometimes_full(graph: Graph) -> None:
        if full:
            raise OutOfMemoryError("CPU: 7 bytes asked, 0 of 5 free")
        compute(graph)

    monkeypatch.setattr(device, "compute", sometimes_full)
    with serving([device]) as server:
        endpoint = f"127.0.0.1:{server.port}"
        config = small_run(asset("stories260k"), [endpoint], n_gpu_layers=99)
        with running_engine(config) as asker:
            before = asker.greedy(PROMPT, 8)
            full = True
            with pytest.raises(OutOfMemoryError, match=f"{endpoint}: GRAPH_.*: 7 bytes asked"):
                asker.greedy(PROMPT, 8)
            full = False
            eventually(lambda: asker.engine.state is EngineState.READY)
            assert asker.greedy(PROMPT, 8).text == before.text
