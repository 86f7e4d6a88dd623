"""Files that belong to a run: receipts and handoffs made from its log, files that its nodes wrote, the state of the git checkout.

All of them can be lost without losing the run: the log is the truth, and these files are views of it or evidence beside it. This
package may import `reading` and the packages below; it and `upkeep` do not import each other.
"""
