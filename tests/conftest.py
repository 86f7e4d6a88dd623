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
# `make check` is to be over soon; `make test` takes its time.
settings.register_profile("quick", settings.get_profile("holdfast"), max_examples=20)
settings.load_profile("holdfast")
