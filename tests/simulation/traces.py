"""Print the traces of some schedules, one per line. `traces.txt` has them, and every Python version must give the same."""

from holdfast.testing.simulator import schedule

for seed in range(40):
    print(seed, schedule(seed).run().trace)
