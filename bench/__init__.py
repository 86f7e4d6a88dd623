"""How fast Holdfast is on this machine, beside what its disk allows. `make bench` runs it.

- `workloads`: what is measured, one small function each; every one of them checks that the work was really done.
- `raw`: the limits it is measured against, through the same driver, and the disk itself.
- `report`: figures with their targets, as a table and as JSON in `bench/results/`.
- `__main__`: the order of a measurement: raw before and after, several rounds, medians of the ratios of one round.
"""
