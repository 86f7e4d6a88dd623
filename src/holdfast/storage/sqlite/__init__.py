"""The store in one SQLite file, and its SQL."""
