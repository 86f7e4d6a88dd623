"""Benchmarks: how fast Holdfast is on this machine, compared with its disk and with other libraries. `make bench` runs them.

- `workloads`, `lasting`, `delays`, `processes`: the workloads, one small function each; every function checks that the work was
  really done. `payloads` makes the content of large states, `stores` the stores of the runs.
- `raw`: the limits to compare with: the same drivers without an engine, and the disk itself.
- `contest` and `peers/`: other libraries, in an environment of their own; `beside_peers`
  alternates Holdfast with them, and `large_states` does so for rows and histories in the state.
- `parts`, `profiles`, `fleet`: rounds, ratios and targets. `report`: figures as a table and as JSON in `bench/results/`.
  `document`, `reasons` and `chart`: make `docs/performance.md` from such a file. `__main__`: the command.
- `counts`: the cost of a step as counts instead of times, for `tests/test_bench.py`.
- `checking`, `held_up`, `million` and `house` are commands of their own: the speed of the checker, the delay of a node by
  `questions()`, a store of a million runs, and the structure of the code.
"""
