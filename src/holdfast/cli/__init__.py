"""The command line: one file per family of commands, all of them thin over the engine's verbs and the reader.

`commands` holds the commands together as the `catalogue` lists them, and imports one when it is called; `app` turns errors into
messages and exit codes; `execution`, `worker`, `requests`, `questions`, `listing`, `log`, `receipts`, `care` and `demo` are the
families; `suggestions` prints remedies and types commands as they can be pasted here; `screen` is the only way to the terminal,
`stores` the only way to a store, `flow_files` the only way to a user's code.
"""

from __future__ import annotations


def main() -> None:
    """What `holdfast` runs."""
    from holdfast.cli import program, screen
    from holdfast.cli.commands import app

    screen.prepare()
    app(prog_name=program.name())
