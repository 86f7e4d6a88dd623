"""Nodes in processes of their own: the executor, the program in the child, and the messages between them."""
