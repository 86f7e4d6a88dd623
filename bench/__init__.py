"""How fast Holdfast is on this machine, beside what its disk allows and beside its peers. `make bench` runs it.

- `workloads`, `lasting`, `delays`, `processes`: what is measured, one small function each; every one of them checks that the work
  was really done. `payloads` is what large states are made of, `stores` where runs are kept.
- `raw`: the limits it is measured against, through the same drivers, and the disk itself.
- `contest` and `peers/`: other libraries, in an environment of their own; `beside_peers` takes turns with them.
- `parts`: rounds, ratios and targets. `report`: figures as a table and as JSON in `bench/results/`. `document` and `chart`:
  `docs/performance.md` of such a file. `__main__`: the command.
- `counts`: what a step costs without a clock, for `tests/test_bench.py`.
"""
