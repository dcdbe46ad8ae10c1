"""Profiles: sums per kind, the table, and devices that have none."""

import pytest

from app.devices.base import Device, DeviceKind
from app.devices.null import NullDevice
from app.devices.profile import (
    Profile,
    Profiled,
    ProfileRow,
    profile_table,
    profile_text,
    start_profiles,
)
from tests.helpers.native import native_cpu


def test_times_and_counts_of_a_kind_add_up_and_the_slowest_is_first() -> None:
    profile = Profile()
    for kind, seconds, count in (("A", 0.5, 1), ("B", 2.0, 3), ("A", 0.25, 4)):
        profile.add(kind, seconds, count)
    assert profile.rows() == [ProfileRow("B", 3, 2.0), ProfileRow("A", 5, 0.75)]


def test_the_table_has_the_totals_and_shares() -> None:
    rows = [ProfileRow("MATVEC", 30, 0.75), ProfileRow("ROPE", 10, 0.25)]
    head, columns, *lines = profile_table("CPU", rows).splitlines()
    assert head == "profile of CPU: 1000.0 ms in 40 steps"
    assert columns.split() == ["kind", "ms", "%", "steps", "µs/step"]
    assert [line.split() for line in lines] == [
        ["MATVEC", "750.0", "75.0", "30", "25000.0"],
        ["ROPE", "250.0", "25.0", "10", "25000.0"],
    ]
    assert len({len(line) for line in (columns, *lines)}) == 1


@pytest.mark.parametrize("rows", [[], [ProfileRow("NOP", 1, 0.0)]])
def test_a_device_that_did_nothing_has_a_table_all_the_same(rows: list[ProfileRow]) -> None:
    assert profile_table("CPU", rows).startswith("profile of CPU: ")


def test_the_native_device_has_a_profile() -> None:
    device = native_cpu()
    assert isinstance(device, Profiled)
    start_profiles([device])
    assert profile_text(device) == "profile of CPU: nothing ran"
    device.close()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (DeviceKind.GPU, "this kind of device has none"),
        (
            DeviceKind.REMOTE,
            "its worker has it (accepts everything, computes nothing; llama-rpc-server --profile)",
        ),
    ],
)
def test_a_device_without_a_profile_says_so(kind: DeviceKind, reason: str) -> None:
    device: Device = NullDevice("X0", kind=kind)
    start_profiles([device])
    assert profile_text(device) == f"profile of X0: {reason}"
