"""What logs say: which runs there are, what happened in them, and why each of them is where it is.

This room answers every question about a run that can be answered without holding it. It claims nothing, executes nothing and
appends nothing. It may import `errors`, `core` and `storage`; every room above may import it.
"""
