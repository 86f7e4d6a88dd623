"""The script that this process executes, as the file of the flows that it defines.

A command such as `holdfast resume RUN FILE.py` imports the file of a flow. A script can be offered there only if importing it
runs nothing: its calls of Holdfast are under `if __name__ == "__main__":`, or in functions.
"""

from __future__ import annotations

import ast
import os
import sys
from functools import cache
from typing import Any

from holdfast.core.graph import Flow


def script_of(flow: Flow[Any]) -> str | None:
    """Return the absolute path of the script that this process executes, if a command can load the flow from it, or None."""
    main = sys.modules.get("__main__")
    if main is None or not any(value is flow for value in vars(main).values()):
        return None
    file = getattr(main, "__file__", None)
    return _importable(os.path.abspath(file)) if isinstance(file, str) else None


@cache
def _importable(file: str) -> str | None:
    """Return the file if it is Python source that only defines something when it is imported."""
    try:
        with open(file, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
    return file if file.endswith(".py") and any(map(_is_guard, tree.body)) else None


def _is_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`."""
    return isinstance(statement, ast.If) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(statement.test)
    )
