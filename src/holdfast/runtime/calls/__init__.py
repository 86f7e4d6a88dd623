"""How a node is called: its body, the thread, task or process it runs in, and the context that it gets of its run.

The rest of `runtime` decides when an attempt begins and what its end means; this folder only makes the call.
"""
