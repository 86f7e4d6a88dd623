"""The store that keeps everything in one SQLite file, and its SQL."""
