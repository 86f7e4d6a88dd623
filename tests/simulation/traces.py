"""Prints the traces of some schedules, one a line: what `traces.txt` holds, and every Python must give again."""

from holdfast.testing.simulator import schedule

for seed in range(40):
    print(seed, schedule(seed).run().trace)
