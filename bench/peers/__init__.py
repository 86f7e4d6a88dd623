"""The same workloads in other libraries: one small program each, in a separate environment (`bench/peers/.venv`).

Nothing here imports Holdfast, and Holdfast depends on nothing here. A program is called as
`python -m bench.peers.burr_peer '{"workload": "chain", …}'` and prints one line of JSON.
"""
