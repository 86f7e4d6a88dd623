"""Files made from the log or kept with it: receipts and handoffs, the files a node wrote, what a checkout looked like.

Everything here can be lost without losing a run: the log is the truth, and these files are views of it or evidence beside it.
The room may import `reading` and the rooms below; it and `upkeep` do not import each other.
"""
