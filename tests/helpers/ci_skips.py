"""pytest plugin: under CI a skipped test is a failed test, unless its reason is on the list.

Loaded by tests/conftest.py. Without it a run that skips all that matters would be green.
"""

import os
import re
from collections.abc import Generator
from typing import Final

import pytest

ALLOWED_IN_CI: Final = (
    re.compile(r"asset '(peer_v7|backend_ops|architectures)' is absent"),
    re.compile(r"IPv6 loopback is unavailable"),
    re.compile(r"no (CUDA|XPU|MPS) device"),
    re.compile(r"level .* cannot be used: .* not supported by this processor"),
    re.compile(r"AMX: not supported by this processor"),
)


def must_not_skip(reason: str) -> bool:
    """Return whether a skip with this reason counts as a failure now."""
    return bool(os.environ.get("CI")) and not any(p.search(reason) for p in ALLOWED_IN_CI)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure; an expected failure is no skip."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        _fail_if_forbidden(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole file into a failure."""
    report = yield
    if report.skipped:
        _fail_if_forbidden(report)
    return report


def _fail_if_forbidden(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if must_not_skip(reason):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which CI does not allow: {reason}"
