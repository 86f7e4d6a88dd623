"""Print the traces of some schedules, one per line. Every Python version must print the content of `traces.txt`."""

from holdfast.testing.simulator import schedule

for seed in range(40):
    print(seed, schedule(seed).run().trace)
