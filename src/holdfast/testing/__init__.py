"""Shipped to users: what tests of flows and stores are made of. `conformance` is the suite that every store passes."""
