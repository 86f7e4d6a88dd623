"""Stores: where logs are kept. They know rows, transactions, leases and bytes, and nothing of what an event means."""
