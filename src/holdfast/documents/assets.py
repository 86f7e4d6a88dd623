"""Assets: things stored outside Holdfast (a file, an object in a bucket, a web page) whose address is kept in a state.

An asset has the address and the media type; Holdfast never opens, copies or deletes the thing itself. To the codec an asset is
plain data, so it may be part of every kind of state type. Invariant: an asset that may be lost in a crash causes a warning when
it is made, and no second warning when it is read from the log.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import urllib.parse
import warnings

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - looked for, never used
_ON_DISK = frozenset({"", "file", "local"})


class NotDurable(UserWarning):
    """Warning: an asset may not outlive the process or the machine, so a resumed run may not find it."""


@dataclasses.dataclass(frozen=True, order=True, init=False)
class Asset:
    """The URI (or path) and media type of a thing stored outside Holdfast.

    Holdfast keeps only the address. Decoding makes assets without `__init__`, so that only the code that makes them is warned.
    """

    uri: str
    media_type: str = "application/octet-stream"

    def __init__(self, uri: str, media_type: str = "application/octet-stream") -> None:
        object.__setattr__(self, "uri", uri)
        object.__setattr__(self, "media_type", media_type)
        self.__post_init__()
        lost = _how_lost(uri)
        if lost:
            warnings.warn(
                f"the asset {uri!r} {lost}, so a resumed run may not find it. Store it in a permanent place "
                "(a folder that is kept, a bucket) and give that URI, or keep its content in the state or in "
                "ctx.artifacts.",
                NotDurable,
                stacklevel=2,
            )

    def __post_init__(self) -> None:
        if not isinstance(self.uri, str):
            raise TypeError(f"Asset(uri={self.uri!r}): give the URI or path as a str, as in str(path)")
        if not self.uri.strip():
            raise ValueError(f"Asset(uri={self.uri!r}): give a URI or path that is not empty")
        if not isinstance(self.media_type, str):
            raise TypeError(f"Asset(media_type={self.media_type!r}): give a str, as in 'text/csv'")


def _how_lost(uri: str) -> str | None:
    """Return why the thing at a URI may get lost; None if it is permanent."""
    try:
        parts = urllib.parse.urlsplit(uri)
    except ValueError:  # square brackets in a path, which are not an IPv6 address
        return None
    if parts.scheme == "memory":
        return "is in the memory of this process"
    if parts.scheme not in _ON_DISK:
        return None
    path = urllib.parse.unquote(parts.path) if parts.scheme else uri
    return "is in a temporary folder" if path and _is_temporary(path) else None


def _is_temporary(path: str) -> bool:
    """Return whether a path, as written or with its symbolic links resolved, is in a temporary folder."""
    folders = {tempfile.gettempdir(), *_TEMPORARY}
    for resolve in (os.path.abspath, os.path.realpath):
        place = resolve(path)
        if any(place == folder or place.startswith(f"{folder}/") for folder in map(resolve, folders)):
            return True
    return False
