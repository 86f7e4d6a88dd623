"""The shell: performs what was decided and appends what happened. The only room with a clock, and the only
one that calls user code.
"""
