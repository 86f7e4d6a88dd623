"""What to type to call this Holdfast from here, so that every command that is suggested can be pasted.

`holdfast` alone where the shell would find this very installation; otherwise the path of the executable, or the Python that has
the package. Messages are written with `holdfast` in them; `spelled` puts in what works here.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import sys

from holdfast.cli.catalogue import BY_NAME

_COMMANDS = "|".join(BY_NAME)
_SUGGESTED = re.compile(rf"(?<![\w./-])holdfast(?= (?:{_COMMANDS})\b)")


def name() -> str:
    """The words that call this Holdfast, quoted for a shell."""
    return _name(os.getcwd(), os.environ.get("PATH", ""), sys.argv[0], sys.executable)


@functools.cache
def _name(folder: str, path: str, called: str, python: str) -> str:
    executable = _executable(called, python)
    if executable is None:
        return f"{shlex.quote(_from(folder, python))} -m holdfast.cli" if python else "holdfast"
    found = shutil.which("holdfast", path=path)
    if found is not None and os.path.samefile(found, executable):
        return "holdfast"
    return shlex.quote(_from(folder, executable))


def _executable(called: str, python: str) -> str | None:
    """The file that runs this, or the one beside its Python where a module was called."""
    beside = os.path.join(os.path.dirname(python), "holdfast") if python else ""
    for path in (called if os.path.basename(called) == "holdfast" else "", beside):
        if path and os.path.isfile(path):
            return os.path.abspath(path)
    return None


def _from(folder: str, path: str) -> str:
    """The path as it is typed in this folder: relative where it lies inside."""
    inside = os.path.relpath(path, folder)
    if inside.startswith(os.pardir + os.sep):
        return path
    return inside if os.sep in inside else os.path.join(os.curdir, inside)


def spelled(message: str) -> str:
    """A message with every command in it as it can be typed here."""
    return _SUGGESTED.sub(lambda _: name(), message)
