"""How a node is called: its body, the thread, task or process it runs in, and the context through which it speaks to its run.

The rest of `runtime` decides that an attempt begins and what its end means; this folder only carries it out.
"""
