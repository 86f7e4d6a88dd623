"""The token that `holdfast serve` uses without being asked: from the environment, or from a file that only its owner can read.

The file is beside a SQLite store, or in the user's state folder. It is made at the first start and used again, so that pages that
are open survive a restart of the server.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import SettingError
from holdfast.storage import tokens
from holdfast.storage.tokens import Token
from holdfast.storage.urls import sqlite_path

VARIABLE = "HOLDFAST_TOKEN"
LENGTH_MIN = 32
_ID_DIGITS = 12


def from_environment(name: str, now: float, environment: Mapping[str, str] = os.environ) -> Token | None:
    """Return the token that HOLDFAST_TOKEN gives; None if it is not set. Raises `SettingError` for one that is easy to guess."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    parts = tokens.split(text)
    if len(text) < LENGTH_MIN or parts is None:
        made = (
            "python3 -c 'import secrets; print(secrets.token_hex(6), secrets.token_urlsafe(32), sep=\".\")'"
        )
        raise SettingError(
            f"{VARIABLE} is not a token: it must have the form ID.SECRET, with letters, digits, - and _, and at least "
            f"{LENGTH_MIN} characters. This makes one: {made}"
        )
    return _token(parts, name, now)


def from_file(file: Path, name: str, now: float) -> tuple[Token, str]:
    """Return the token in a file, and its text. The file is made if it does not exist. Raises `SettingError`."""
    text = _read(file)
    if text is None:
        _write(file, tokens.new_text())
        text = _read(file)
    parts = tokens.split(text or "")
    if text is None or parts is None:
        raise SettingError(f"{file} does not contain a token. Remove the file, so that a new one is made.")
    return _token(parts, name, now), text


def place_for(store: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the token for a store is kept."""
    path = sqlite_path(store)
    if path is not None:
        return Path(f"{os.path.abspath(os.path.expanduser(path))}.token")
    base = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    mark = hashlib.sha256(store.encode()).hexdigest()[:16]
    return Path(base, "holdfast", f"{mark}.token")


def _token(parts: tuple[str, str], name: str, now: float) -> Token:
    return Token(id=parts[0], name=name, role="admin", digest=tokens.digest_of(parts[1]), created_at=now)


def _read(file: Path) -> str | None:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise SettingError(
            f"the token in {file} cannot be read: {fault.strerror}. Remove the file."
        ) from fault
    with os.fdopen(handle, "rb") as opened:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077 or about.st_uid != os.geteuid():
            raise SettingError(
                f"others may read the token in {file}, so it is not used. Remove the file, so that a new token is made."
            )
        return opened.read(1000).decode("utf-8", "replace").strip()


def _write(file: Path, text: str) -> None:
    """Write a new file that only its owner can read. If another process made it meanwhile, that file stays."""
    begun = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as opened:
            opened.write(f"{text}\n")
        try:
            os.link(begun, file)
        except FileExistsError:
            return
        finally:
            os.unlink(begun)
    except OSError as fault:
        raise SettingError(
            f"the token cannot be kept in {file}: {fault.strerror}. Set {VARIABLE} instead, or make the folder writable."
        ) from fault
