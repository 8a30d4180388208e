"""What is the same for every test, whatever the terminal and however busy the machine."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A worker for each core: with more threads than that they wait for each other, spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# pytest-xdist tells its workers how wide the terminal is; commands would believe it.
os.environ.pop("COLUMNS", None)

# The same examples on every run.
settings.register_profile(
    "busy", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("busy")
