"""Stores keep the logs of runs. They know rows, transactions, leases and bytes, but not what an event means."""
