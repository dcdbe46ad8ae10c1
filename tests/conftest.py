"""Settings for every test: one thread per maths library, no network beyond loopback by accident.

The hang killer is pytest-timeout (300 s per test; `@pytest.mark.timeout(n)` overrides it).
"""

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.helpers.certificates import Certificates

# Set before numpy or torch are imported: tests share few cores, and thread pools would fight over
# them.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Property tests look at the same examples in every run, and none has a deadline: the machine may be
# busy, and another run may go on beside this one.
settings.register_profile(
    "exact",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("exact")

pytest_plugins = ["pytester", "tests.helpers.ci_skips"]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a command line under test does to logging: later tests read the log, too."""
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(x for x in known if isinstance(x, logging.Logger))]
    before = [(x, x.level, x.propagate, x.disabled, list(x.handlers)) for x in loggers]
    disabled = logging.root.manager.disable
    yield
    logging.disable(disabled)
    for logger, level, propagate, is_disabled, handlers in before:
        logger.setLevel(level)
        logger.propagate, logger.disabled, logger.handlers = propagate, is_disabled, handlers


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> "Certificates":
    """A CA of the tests' own."""
    from tests.helpers.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("certificates"))
