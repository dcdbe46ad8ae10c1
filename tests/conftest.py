"""Settings for every test: one thread per maths library, no network beyond loopback by accident.

The hang killer is pytest-timeout (120 s per test; `@pytest.mark.timeout(n)` overrides it).
"""

import os

# Set before numpy or torch are imported: tests share few cores, and thread pools would fight over
# them.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = ["pytester", "tests.helpers.ci_skips"]
