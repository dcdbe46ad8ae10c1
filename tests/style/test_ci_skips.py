"""The CI plugin: skips fail there and only there."""

import pytest

SKIPPING = """
import pytest

def test_passes():
    pass

def test_asset():
    pytest.skip({reason!r})

@pytest.mark.skip(reason={reason!r})
def test_marked():
    pass
"""
OPTIONS = ("-p", "tests.helpers.ci_skips", "-p", "no:cacheprovider")


def run(pytester: pytest.Pytester, source: str) -> dict[str, int]:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess(*OPTIONS).parseoutcomes()


def test_skips_fail_under_ci(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    outcomes = run(pytester, SKIPPING.format(reason="asset 'smollm2' is absent"))
    assert outcomes == {"passed": 1, "failed": 1, "errors": 1}


def test_skips_stay_skips_elsewhere(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    outcomes = run(pytester, SKIPPING.format(reason="asset 'smollm2' is absent"))
    assert outcomes == {"passed": 1, "skipped": 2}


def test_listed_reasons_are_allowed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    outcomes = run(pytester, SKIPPING.format(reason="asset 'peer_v7' is absent: build it"))
    assert outcomes == {"passed": 1, "skipped": 2}


def test_a_file_that_skips_itself_fails_under_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    outcomes = run(pytester, "import pytest\npytest.importorskip('no_such_module')\n")
    assert outcomes == {"errors": 1}


def test_expected_failures_are_no_skips(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    source = "import pytest\n@pytest.mark.xfail\ndef test_x():\n    assert False\n"
    assert run(pytester, source) == {"xfailed": 1}
