"""A worker that goes away while nobody asks for anything is told of before somebody does."""

import pytest

from app.devices.null import NullDevice
from app.engine import engine
from app.engine.facade import EngineState
from tests.helpers.assets import asset
from tests.helpers.eventually import eventually
from tests.helpers.local_engine import running_engine, small_run
from tests.helpers.rpc_link import serving


@pytest.mark.parametrize("sleep_idle_s", [None, 3600.0])
def test_an_idle_engine_notices_and_names_the_worker(
    sleep_idle_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LOOK_S", 0.01)
    with serving([NullDevice()]) as server:
        endpoint = f"127.0.0.1:{server.port}"
        config = small_run(
            asset("stories260k"), [endpoint], n_gpu_layers=99, sleep_idle_s=sleep_idle_s
        )
        with running_engine(config) as asker:
            server.stop()
            eventually(lambda: asker.engine.state is EngineState.FAILED)
            assert endpoint in asker.engine.error
