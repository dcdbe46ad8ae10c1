"""Placement: bytes and flags in, devices out, and refusals that say why."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.config import SplitMode
from app.engine.placement import (
    HOST,
    MIB,
    LayerCost,
    PlacementRequest,
    Target,
    bytes_per_device,
    place,
    table,
)
from app.errors import ConfigError


def request(
    costs: list[int],
    free: list[int],
    *,
    host: int = 1000,
    ngl: int | None = None,
    split: tuple[float, ...] = (),
    mode: SplitMode = SplitMode.LAYER,
    main: int = 0,
    scratch: int = 0,
) -> PlacementRequest:
    """A request in MiB; the last cost is the output matrix."""
    return PlacementRequest(
        costs=tuple(LayerCost(c * MIB, 0) for c in costs),
        scratch=scratch * MIB,
        devices=tuple(Target(f"RPC{i}", "test", f * MIB) for i, f in enumerate(free)),
        host=Target("CPU", "host", host * MIB),
        n_gpu_layers=ngl,
        tensor_split=split,
        split_mode=mode,
        main_gpu=main,
        margin=0,
    )


def test_without_devices_everything_is_on_the_host() -> None:
    assert place(request([1, 1, 1], [])).device_of == (HOST, HOST, HOST)


def test_a_heavy_output_matrix_counts_with_its_bytes() -> None:
    placement = place(request([1] * 8 + [8], [100, 100]))
    assert placement.device_of == (0,) * 8 + (1,)


def test_memory_decides_the_shares() -> None:
    placement = place(request([1] * 10, [300, 100, 100]))
    assert [placement.device_of.count(i) for i in range(3)] == [6, 2, 2]


def test_tensor_split_counts_layers_as_llama_cpp_does() -> None:
    assert place(request([1] * 4, [100, 100], split=(3, 1))).device_of == (0, 0, 0, 1)
    assert place(request([1] * 4, [100, 100], split=(0, 1))).device_of == (1, 1, 1, 1)
    assert place(request([1] * 4, [100, 100], split=(1,))).device_of == (0, 0, 0, 0)


def test_ngl_keeps_the_first_layers_on_the_host() -> None:
    assert place(request([1] * 4, [100], ngl=2)).device_of == (HOST, HOST, 0, 0)
    assert place(request([1] * 4, [100], ngl=0)).device_of == (HOST,) * 4
    assert place(request([1] * 4, [100], ngl=99)).device_of == (0,) * 4


def test_automatic_ngl_takes_what_fits() -> None:
    placement = place(request([10] * 10, [55]))
    assert placement.device_of == (HOST,) * 5 + (0,) * 5


def test_scratch_is_part_of_the_bill() -> None:
    placement = place(request([10] * 10, [55], scratch=6))
    assert placement.device_of.count(0) == 4


def test_a_plan_that_cannot_fit_is_refused_with_names_and_numbers() -> None:
    with pytest.raises(ConfigError, match=r"RPC0 needs 100 MiB and has 55 MiB free"):
        place(request([10] * 10, [55], ngl=99))
    with pytest.raises(ConfigError, match=r"CPU needs"):
        place(request([10] * 10, [5], host=20))


def test_too_many_shares_are_refused() -> None:
    with pytest.raises(ConfigError, match="tensor-split has 3 values, expected at most 2"):
        place(request([1] * 4, [9, 9], split=(1, 1, 1)))


def test_split_mode_none_uses_the_main_device() -> None:
    assert place(request([1] * 3, [9, 9], mode=SplitMode.NONE, main=1)).device_of == (1, 1, 1)
    with pytest.raises(ConfigError, match="main-gpu 2"):
        place(request([1] * 3, [9, 9], mode=SplitMode.NONE, main=2))


def test_the_table_names_devices_and_layers() -> None:
    wanted = request([1] * 4 + [2], [100, 100], split=(1, 1))
    text = table(wanted, place(wanted))
    assert "RPC0 (test)" in text and "0-2" in text
    assert "3, output" in text


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=2, max_size=12),
    st.lists(st.integers(1, 400), min_size=1, max_size=4),
)
def test_no_device_is_overfilled_and_runs_are_contiguous(costs: list[int], free: list[int]) -> None:
    wanted = request(costs, free, host=100_000)
    placement = place(wanted)
    for device, used in bytes_per_device(wanted, placement).items():
        if device != HOST:
            assert used <= free[device] * MIB
    assert list(placement.device_of) == sorted(placement.device_of)
