"""Serves the web page: its index, its scripts and its stylesheet, made from the files in the folder `page` of this package.

Each file has an exact path in the list `ROUTES` and needs no token: the page asks for one, and every fact that it shows comes
from routes that need it. Nothing outside of the list can be read. The policy of the page lets it run its own script only, and
lets no script make an element from text.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from holdfast.server import page_script
from holdfast.server.calls import Answer, ApiRoute, HttpCall

FOLDER = "page"
INDEX = "index.html"
SCRIPT = "page.js"
"""The module that begins the page and shows the list of runs, and the script that is made of it and of all that it imports."""
LATER = "later.js"
"""The same for the other screens: the first rows need not wait for them."""
STYLES = "page.css"
NAMES = (INDEX, "mark.svg", STYLES, SCRIPT, LATER)
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Suffix -> type."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class PageFile(NamedTuple):
    """A file of the page, ready to be sent."""

    plain: bytes
    packed: bytes
    """The same, compressed by gzip."""
    digest: str


def path_of(name: str) -> str:
    """Return the path at which a file is served. The index is at `/`, so that the others are found relative to it, also below
    the prefix under which the application is mounted.
    """
    return "/" if name == INDEX else f"/{FOLDER}/{name}"


@cache
def read(name: str) -> PageFile:
    """Return a file of the page. It is made and compressed once."""
    if name in (SCRIPT, LATER):
        text = page_script.make_script(modules(), name, first=SCRIPT if name == LATER else None)
    else:
        text = _folder().joinpath(name).read_text("utf-8")
    if name == STYLES:
        text = page_script.strip_comments(text)
    plain = text.encode()
    return PageFile(plain, gzip.compress(plain, 9, mtime=0), sha256(plain).hexdigest()[:32])


def modules() -> dict[str, str]:
    """Return the modules of the page: path below its folder -> source."""

    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".js"):
                yield prefix + entry.name, entry.read_text("utf-8")

    return dict(sorted(walk(_folder(), "")))


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
    for name in NAMES
)
"""The routes of the page: apart from those of the API, because they are no part of its description."""
