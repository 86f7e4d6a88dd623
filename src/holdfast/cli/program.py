"""How the user's shell can call this installation of Holdfast, so that every suggested command can be pasted.

That is `holdfast` if the shell finds this very installation under that name; otherwise the path of the executable, or
`PYTHON -m holdfast.cli`. Messages contain `holdfast COMMAND`; `spell` replaces `holdfast` with the words that work here.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise

from holdfast.cli.catalogue import BY_NAME

_COMMANDS = "|".join(BY_NAME)
_IN_BACKTICKS = re.compile(rf"`(holdfast (?:{_COMMANDS})\b(?![^`]*--store)[^`]*)`")
_AT_THE_SERVER = ("holdfast serve", "holdfast token")
"""Commands that are suggested for the machine of a server, and do not take its address as their store."""
_SUGGESTED = re.compile(rf"(?<![\w./-])holdfast(?= (?:{_COMMANDS})\b)")


_typed: list[str] = []
_owned: list[bool] = []


def own_process() -> None:
    """Note that this process was started as `holdfast`, and not by a program that calls a command as a function."""
    _owned[:] = [True]


def freeze() -> None:
    """Exclude from garbage collections what exists now, such as loaded libraries and flows: it lives as long as this process.
    Does nothing in the process of another program, whose collector is not ours to set.
    """
    if _owned:
        gc.freeze()


def note_typed(words: Sequence[str]) -> None:
    """Remember the words of the command that is being executed."""
    _typed[:] = words


def typed() -> list[str]:
    """Return the words of the command that is being executed, without the name of the program."""
    return list(_typed)


def name() -> str:
    """Return the words that call this installation of Holdfast, quoted for a shell."""
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
    """Find the `holdfast` executable: the file that was called, or else the one in the folder of this Python."""
    beside = os.path.join(os.path.dirname(python), "holdfast") if python else ""
    for path in (called if os.path.basename(called) == "holdfast" else "", beside):
        if path and os.path.isfile(path):
            return os.path.abspath(path)
    return None


def _from(folder: str, path: str) -> str:
    """Return a path as it can be typed in this folder: relative if it is inside the folder."""
    inside = os.path.relpath(path, folder)
    if inside.startswith(os.pardir + os.sep):
        return path
    return inside if os.sep in inside else os.path.join(os.curdir, inside)


def spell(message: str) -> str:
    """Replace `holdfast` in every command that a message suggests with the words that call this installation, and add the
    `--store` that the user typed.
    """
    store = _typed_store()
    if store is not None:
        from holdfast.storage import urls

        kept = _AT_THE_SERVER if urls.is_server(store) else ()
        message = _IN_BACKTICKS.sub(
            lambda found: (
                found[0] if found[1].startswith(kept) else f"`{found[1]} --store {shlex.quote(store)}`"
            ),
            message,
        )
    return _SUGGESTED.sub(lambda _: name(), message)


def _typed_store() -> str | None:
    """Return the `--store` that the user typed, without its password. None if there was none, and for `restore` and
    `unarchive`, which fill a store from another place.
    """
    if _typed[:1] in (["restore"], ["unarchive"]):
        return None
    words = [part for word in _typed for part in word.split("=", 1 if word.startswith("--store=") else 0)]
    found = next((value for option, value in pairwise(words) if option == "--store"), None)
    if found is None:
        return None
    from holdfast.storage import urls

    return urls.shown(found)
