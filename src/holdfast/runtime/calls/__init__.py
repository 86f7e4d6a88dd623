"""How a node is called: its body, the thread, task or process in which it runs, and the context that connects it to its run.

The rest of `runtime` decides when an attempt begins and what its end means; this folder only makes the call.
"""
