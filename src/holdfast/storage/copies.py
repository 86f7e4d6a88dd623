"""How a backup or an archive gets its name: last, whole, durable, and never in the place of anything else unasked."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import SettingError
from holdfast.storage import disk


def refuse_taken(target: Path) -> None:
    """A backup never takes the place of anything."""
    if target.is_dir():
        raise SettingError(f"{target} is a folder. Name a file in it, e.g. {target}/runs.backup.")
    if target.exists():
        raise SettingError(f"{target} exists already, and a backup overwrites nothing. Choose another name.")


def name_file(temporary: str, target: Path, *, replace: bool = False) -> None:
    """Give a file that is written its name, for good, unless somebody else has taken it meanwhile. With `replace` it takes the
    place of what has that name, at one stroke.
    """
    handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        disk.sync_file(handle)
    finally:
        os.close(handle)
    try:
        if replace:
            os.replace(temporary, target)
        else:
            os.link(temporary, target)
    except FileExistsError:
        raise SettingError(f"{target} has come to be meanwhile. Choose another name.") from None
    disk.sync_folder(target.parent)
