"""The command line: one file per group of commands, each a thin layer over the methods of the engine and the reader.

`catalogue` lists all commands; `app` makes one program of them, imports a command's module when the command is called, and turns
errors into messages and exit codes. The commands are in `execution`, `worker`, `requests`, `questions`, `listing`, `watch`,
`log`, `receipts`, `care` and `demo`. `suggestions` prints remedies as commands that can be pasted. Only `screen` writes to the
terminal, only `stores` opens a store, and only `flow_files` imports a user's code.
"""

from __future__ import annotations

from holdfast.cli.app import main

__all__ = ["main"]
