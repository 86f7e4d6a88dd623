"""Nodes in their own processes: the executor, the program in the child process, and the messages between the two."""
