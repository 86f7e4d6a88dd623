"""Maintains a store: deletes what is no longer needed (retention), archives runs, and finds problems (doctor, recovery).

This package decides about whole runs, never about what a run does next. It may import `reading` and the packages below; it and
`documents` do not import each other.
"""
