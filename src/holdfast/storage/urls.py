"""Open a store, or a place for blobs, by its URL or path.

A URL may contain a password: no part of an unknown URL is ever printed except its scheme (for blobs, also the host and path).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from holdfast.errors import SettingError, did_you_mean
from holdfast.storage.blobs import Blobs
from holdfast.storage.contract import Store
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.remote import FsspecBlobs
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.postgres.address import SECRET_OPTIONS, SHOWN_OPTIONS, Address
from holdfast.storage.sqlite.store import SqliteStore

SCHEMES = ("memory", "sqlite", "postgresql", "https", "http")
_POSTGRES = ("postgresql", "postgres")
_SERVERS = ("https", "http")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_NAME = re.compile(r"[A-Za-z0-9._-]{0,128}")
_PATH = re.compile(r"(?:~|\.{1,2}/|/(?!/))")
_KEYWORD = re.compile(r"\s*([A-Za-z_]+)\s*=")
_LOGIN = re.compile(r"postgres(?:ql)?:|(?:postgres(?:ql)?)?/*[^/]*:.*@", re.IGNORECASE | re.DOTALL)
_memory_blobs: dict[str, MemoryBlobs] = {}


def open_store(
    url: str | os.PathLike[str],
    *,
    clock: Callable[[], float] | None = None,
    blobs: str | os.PathLike[str] | None = None,
    reads: bool = False,
) -> Store:
    """Open the store at `memory://[name]`, `sqlite:///path` (`sqlite:////path` for an absolute path), a bare path, which means
    SQLite, `postgresql://…`, or that of a server, `https://…`. Its blobs are where this kind of store keeps them, or at the URL
    `blobs`. Without `clock`, a store uses the clock that all its users share: this machine's, or that of the database server.
    With `reads`, a SQLite file that this process may not write is opened all the same, to read it.
    """
    if blobs and is_server(url):
        raise SettingError(
            "the blobs of a store on a server are read through the server: leave out the option blobs (HOLDFAST_BLOBS)"
        )
    store = _open(url, clock, reads=reads)
    try:
        if blobs:
            store.blobs = open_blobs(blobs, spills=store.blobs)
    except BaseException:
        store.close()
        raise
    return store


def open_blobs(url: str | os.PathLike[str], *, spills: Blobs) -> Blobs:
    """Open the place for blobs at `file:///path` or a bare path, `memory://[name]`, or any URL that fsspec knows. For an fsspec
    URL, partial streams are kept in `spills`.
    """
    text = os.fspath(url)
    match = _SCHEME.match(text)
    if match is None:
        return FileBlobs(Path(text).expanduser())
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "memory":
        name = _memory_name(rest)
        return _memory_blobs.setdefault(name, MemoryBlobs(f"memory://{name}"))
    if scheme == "file":
        return FileBlobs(_file_path(rest))
    return FsspecBlobs(text, spills=spills)


def is_there(url: str | os.PathLike[str]) -> bool:
    """Return whether a store exists at this URL or path. The check creates nothing. A store in memory always exists."""
    path = sqlite_path(url)
    if path is not None:
        file = os.path.expanduser(path)
        empty = os.path.isfile(file) and not os.path.getsize(file)
        return os.path.exists(file) and not empty
    if _scheme(url) not in _POSTGRES:
        return True
    _require_driver()
    from holdfast.storage.postgres import store as postgres

    return postgres.is_there(os.fspath(url))


def is_server(url: str | os.PathLike[str]) -> bool:
    """Return whether the URL names a server, whose store can be read and asked, but not executed on."""
    return _scheme(url) in _SERVERS


def is_memory(url: str | os.PathLike[str]) -> bool:
    """Return whether the URL names a store in memory, which only this process can use and which ends with it."""
    return _scheme(url) == "memory"


def _scheme(url: str | os.PathLike[str]) -> str:
    match = _SCHEME.match(os.fspath(url))
    return match[1].lower() if match is not None else ""


def sqlite_path(url: str | os.PathLike[str]) -> str | None:
    """Return the path of a SQLite store, or None for a store of another kind."""
    text = os.fspath(url)
    match = _SCHEME.match(text)
    if match is None:
        return _bare_path(url) or None
    return _sqlite_path(text[match.end() :]) if match[1].lower() == "sqlite" else None


def shown(url: str | os.PathLike[str]) -> str:
    """Return the URL or path of a store without its password, so that it may be printed."""
    text = os.fspath(url)
    match = _SCHEME.match(text)
    try:
        if match is None:
            return _bare_path(url)
        scheme = match[1].lower()
        if scheme in _POSTGRES:
            return Address(text).url
        if scheme in _SERVERS:
            return _server_url(text)
    except SettingError:
        return "URL"
    return text if scheme in SCHEMES else f"{scheme}://…"


def _open(
    url: str | os.PathLike[str],
    clock: Callable[[], float] | None,
    machine: Callable[[], float] = time.time,
    *,
    reads: bool = False,
) -> Store:
    text = os.fspath(url)
    if not text:
        raise SettingError(
            "the store URL is empty. Give a path, e.g. runs.db, or memory:// for a store that is lost when the process ends."
        )
    match = _SCHEME.match(text)
    if match is None:
        return SqliteStore(_bare_path(url), clock=clock, reads=reads)
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "memory":
        return MemoryStore(_memory_name(rest), clock=clock or machine)
    if scheme == "sqlite":
        return SqliteStore(_sqlite_path(rest), clock=clock, reads=reads)
    if scheme in _POSTGRES:
        return _postgres(text, clock)
    if scheme in _SERVERS:
        from holdfast.storage.http.store import RemoteStore  # here, because it imports TLS, which takes time

        return RemoteStore(text)
    raise SettingError(
        f"no store has the scheme {scheme!r}{did_you_mean(scheme, SCHEMES) or '.'} "
        "A store URL is memory://[name], sqlite:///path or a bare path, which means SQLite, postgresql://…, or https://… for the "
        "store of a server."
    )


def _postgres(url: str, clock: Callable[[], float] | None) -> Store:
    _require_driver()
    from holdfast.storage.postgres.store import PostgresStore

    return PostgresStore(url, clock=clock)


def _server_url(text: str) -> str:
    from holdfast.storage.http.server_url import ServerUrl

    return ServerUrl.parse(text).text


def _require_driver() -> None:
    try:
        import holdfast.storage.postgres.store  # noqa: F401
    except ImportError as missing:
        if (missing.name or "").startswith("holdfast"):
            raise
        raise SettingError(
            "a PostgreSQL store needs the package psycopg: pip install 'holdfast[postgres]', or '.[postgres]' in a clone"
        ) from None


def _bare_path(url: str | os.PathLike[str]) -> str:
    """Return the path of a SQLite store that was given without a scheme. A text that looks like the address of a database is
    refused, because it would become the name of a file that contains the password; the error does not quote it.
    """
    text = os.fspath(url)
    if not isinstance(url, str) or _PATH.match(text):
        return text
    keyword, known = _KEYWORD.match(text), SHOWN_OPTIONS | SECRET_OPTIONS
    word = keyword[1].lower() if keyword is not None else ""
    if word in known or did_you_mean(word, known) or _LOGIN.match(text):
        raise SettingError(
            "the given store looks like a database address without `postgresql://`. A PostgreSQL store is "
            "postgresql://user:password@host:5432/database, with options after a ?; write ./NAME if you mean a file."
        )
    return text


def _memory_name(rest: str) -> str:
    name = rest.removeprefix("/")
    if not rest.startswith("/") or not _NAME.fullmatch(name):
        raise SettingError(
            "this memory:// URL is not valid. Write memory://name, with only letters, digits, '.', '_' and '-' in the name."
        )
    return name


def _file_path(rest: str) -> str:
    if not rest.startswith("//") or not rest.strip("/"):
        raise SettingError(
            "this file: URL of a folder for blobs is not valid. Write a path, or file:///path, with three slashes."
        )
    return unquote(rest[1:])


def _sqlite_path(rest: str) -> str:
    path = rest.removeprefix("//")
    if not rest.startswith("//") or not path:
        raise SettingError(
            "this SQLite URL is not valid. Write sqlite:///path, with three slashes before a relative path and four before "
            "an absolute one: sqlite:///runs.db, sqlite:////var/lib/runs.db."
        )
    return path
