"""Serves the files of the web page, which are in the folder `page` of this package.

Each file has an exact path in the list `ROUTES` and needs no token: the page asks for one, and every fact that it shows comes
from routes that need it. Nothing outside of the list can be read. The policy of the page lets it run its own scripts only, and
lets no script make an element from text.

Comments are for those who read the source, and a third of it. Scripts and styles are sent without them and without indentation,
line by line, so that line numbers in a browser are those of the source.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from holdfast.server.calls import Answer, ApiRoute, HttpCall

FOLDER = "page"
INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Suffix -> type. Files with another suffix, such as the types for the checker, are not served."""

_MODULES = "<!-- modules -->"
"""Where the index names all modules, so that a browser loads them at once, and not one import after the other."""
_PRELOAD = '<link rel="modulepreload" href="page/{}">'
_WITH_COMMENTS = (".js", ".css")
_CAST = re.compile(r"/\*\* @type \{[^*]*\} \*/ ?")

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class PageFile(NamedTuple):
    """A file of the page, ready to be sent: without comments."""

    plain: bytes
    packed: bytes
    """The same, compressed by gzip."""
    digest: str


def names() -> list[str]:
    """Return the files of the page, as paths below its folder."""

    def walk(folder: Traversable, prefix: str) -> list[str]:
        found = []
        for entry in folder.iterdir():
            path = prefix + entry.name
            found += walk(entry, f"{path}/") if entry.is_dir() else [path]
        return found

    return sorted(name for name in walk(_folder(), "") if _suffix(name) in TYPES)


def _scripts() -> list[str]:
    return [name for name in names() if name.endswith(".js")]


def path_of(name: str) -> str:
    """Return the path at which a file is served. The index is at `/`, so that the others are found relative to it, also below
    the prefix under which the application is mounted.
    """
    return "/" if name == INDEX else f"/{FOLDER}/{name}"


@cache
def read(name: str) -> PageFile:
    """Return a file of the page. It is read and compressed once."""
    text = _folder().joinpath(*name.split("/")).read_text("utf-8")
    if name == INDEX:
        text = text.replace(_MODULES, "\n".join(map(_PRELOAD.format, _scripts())))
    plain = (strip_comments(text) if _suffix(name) in _WITH_COMMENTS else text).encode()
    return PageFile(plain, gzip.compress(plain, 9, mtime=0), sha256(plain).hexdigest()[:32])


def strip_comments(text: str) -> str:
    """Return a script or a stylesheet without comments and indentation, with as many lines. A comment begins its line, or is a
    cast (`/** @type {…} */`); nothing else in the page looks like one, and no string of the page spans lines.
    """
    lines, in_block = [], False
    for line in text.split("\n"):
        left = line.strip()
        if in_block or left.startswith("/*"):
            _, ended, left = left.partition("*/")
            in_block = not ended
        left = "" if in_block or left.startswith("//") else _CAST.sub("", left).lstrip()
        lines.append(left)
    return "\n".join(lines)


def _handler(name: str) -> Callable[[HttpCall[Any, Any]], Answer]:
    def get_file(call: HttpCall[Any, Any]) -> Answer:
        """Get a file of the web page."""
        file = read(name)
        packs = "gzip" in call.headers.get("accept-encoding", "")
        tag = f'"{file.digest}{".gz" if packs else ""}"'
        headers = {
            "Content-Security-Policy": POLICY,
            "Cache-Control": "no-cache",  # kept, but asked for each time: a newer server sends newer files
            "ETag": tag,
            "Vary": "Accept-Encoding",
        }
        if tag in call.headers.get("if-none-match", "").replace("W/", "").split(", "):
            return Answer(status=304, headers=headers)
        if packs:
            headers["Content-Encoding"] = "gzip"
        return Answer(
            body=file.packed if packs else file.plain, headers=headers, media_type=TYPES[_suffix(name)]
        )

    return get_file


def _folder() -> Traversable:
    return files("holdfast.server").joinpath(FOLDER)


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


ROUTES: tuple[ApiRoute, ...] = tuple(
    ApiRoute(
        method="GET",
        path=path_of(name),
        role=None,
        handler=_handler(name),
        media_type=TYPES[_suffix(name)],
        statuses=(200, 304),
    )
    for name in names()
)
"""The routes of the page: apart from those of the API, because they are no part of its description."""
