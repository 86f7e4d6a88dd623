"""How a store stays small and intact: what may go (retention), where it goes (archive), and what is wrong (doctor, recovery).

This room decides about whole runs, never about what a run does next. It may import `reading` and the rooms below; it and
`documents` do not import each other.
"""
