"""Reads runs from a store: which runs there are, what happened in them, and why each run is in its current status.

This package answers every question about a run that needs no lease. It claims no run, executes no node and appends no event. It
may import `errors`, `core` and `storage`; every package above may import it.
"""
