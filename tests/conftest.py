"""Settings that all tests share.

Hypothesis may take its time (two cores, other processes) and prints the seed of what it found; in CI it draws the
same examples every time.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "holdfast",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")
