"""Artifacts: the files that a node writes into its folder, `artifacts/<node>/`, through `ctx.artifacts`.

The folder holds the files of the latest attempt that used it. When another attempt begins to use it, the earlier content is moved
aside in one rename, to `artifacts/<node>@<iteration.execution.attempt>/`; a small file `.visit` says which attempt the folder
belongs to. An attempt that is woken after a wait finds its files again. Each item of a fan-out has its own folder inside the
node's folder, which then belongs to the whole execution, so that items keep their files when others are retried. No folder is
made before it is used.

Invariant: a name leads to a file inside the folder, or is refused. Files outside the log are evidence, never truth: the log has
the names, sizes and digests of the files that a node had written when it completed.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from holdfast.documents import run_folder
from holdfast.documents.files import put, temporary, write_new
from holdfast.errors import ContextError
from holdfast.storage.files.disk import make_folder, sync_file, sync_folder

_VISIT = ".visit"
_turns = (
    threading.Lock()
)  # items of a fan-out call from several threads, and only one of them may make the folder


class Artifacts:
    """The files of one attempt. `path("report.pdf")` returns where to write a file; `write` writes one atomically."""

    def __init__(
        self, run_base: str | os.PathLike[str], run_id: str, flow: str, node: str, visit: str
    ) -> None:
        """Make the object for one attempt of a node. `visit` is the text `iteration.execution.attempt`; for an item of a
        fan-out, the item's number follows.
        """
        self._node = node
        self.made_of = (os.fspath(run_base), run_id, flow, node, visit)
        """The arguments with which another process can make the same object."""
        iteration, execution, attempt, *item = visit.split(".")
        self._attempt = f"{iteration}.{execution}.{attempt}"
        self._folders = run_folder.run_folder(run_base, run_id, flow) / run_folder.ARTIFACTS
        self._item = item[0] if item else None
        self._of_node = f"{iteration}.{execution}" if item else self._attempt
        """The owner of the node's folder: this attempt, or the whole execution if items of a fan-out share the folder."""
        self._begun = False
        self.guard: Callable[[], object] | None = None
        """Raises if nothing that the attempt does takes effect any more; called before the folder is used."""

    def __fspath__(self) -> str:
        return str(self._begin())

    def __repr__(self) -> str:
        return f"<Artifacts {self._place()}>"

    def path(self, name: str) -> Path:
        """Return the path at which to write a file of this name. Its parent folders are made."""
        parts = self._parts(name)
        place = self._inside(self._begin(), parts, name)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            self._refuse(name, "one of its parent folders is a file; choose another name")
        return place

    def write(self, name: str, data: bytes | str) -> Path:
        """Write a file atomically: a reader sees either the complete file or the file that was there before."""
        if isinstance(data, str):
            data = data.encode("utf-8")
        place = self.path(name)
        if place.is_dir():
            self._refuse(name, "a folder has that name; choose another name")
        put(place, data)
        return place

    def list(self) -> list[str]:
        """Return the names of all files of this attempt, sorted."""
        return sorted(name for name, _ in self._files())

    def collect(self) -> dict[str, dict[str, Any]]:
        """Sync every file to disk, so that it survives power loss. Returns the size and digest of each file, by name."""
        found: dict[str, dict[str, Any]] = {}
        folders: set[Path] = set()
        for name, file in sorted(self._files()):
            found[name] = _describe_file(file)
            folders.update(parent for parent in file.parents if parent.is_relative_to(self._place()))
        for folder in sorted(folders, reverse=True):
            sync_folder(folder)
        return found

    # --- the folder -----------------------------------------------------------------------------------

    def _place(self) -> Path:
        """Return the folder for this attempt's files, even if another attempt uses it now."""
        mine = _folder_of(self._folders, self._node)
        return mine if self._item is None else mine / self._item

    def _begin(self) -> Path:
        """Return the folder for this attempt's files. If another attempt used the folder before, its files are moved aside
        first.
        """
        if self.guard is not None:
            self.guard()
        with _turns:
            mine = _folder_of(self._folders, self._node)
            if self._begun and not self._is_ours():
                raise ContextError(
                    f"node {self._node!r}: attempt {self._attempt} has been abandoned, and its files were moved "
                    "aside for the next attempt. Return from the node; a node with a long loop should check "
                    "ctx.cancelled."
                )
            self._begun = True
            _take(mine, self._of_node, self._node)
            if self._item is not None:
                mine /= self._item
                _take(mine, self._attempt, self._node)
        return mine

    def _is_ours(self) -> bool:
        """Return whether the folder exists and belongs to this attempt."""
        mine = self._place()
        of_node = mine if self._item is None else mine.parent
        return _user_of(of_node)[0] == self._of_node and (
            self._item is None or _user_of(mine)[0] == self._attempt
        )

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield the name and path of each file that this attempt has written."""
        mine = self._place()
        if not self._is_ours():
            return
        for name, file in _walk(mine):
            if file.is_symlink():
                self._inside(mine, tuple(name.split("/")), name)
            if file.is_file():
                yield name, file

    # --- names ----------------------------------------------------------------------------------------

    def _parts(self, name: str) -> tuple[str, ...]:
        if not isinstance(name, str) or not name or "\0" in name:
            self._refuse(name, "the name must be a str, as in 'report.pdf' or 'pages/1.html'")
        if name.startswith("/") or name[1:2] == ":":
            self._refuse(name, "the path is absolute; give a name inside the folder")
        parts = tuple(name.split("/"))
        if "\\" in name or any(part in ("", ".", "..") for part in parts):
            self._refuse(
                name, "the name contains '..', '.', '\\' or an empty part; give a name inside the folder"
            )
        if any(part == _VISIT or part.startswith(run_folder.TEMPORARY) for part in parts):
            self._refuse(name, "Holdfast uses that name itself; choose another name")
        return parts

    def _inside(self, folder: Path, parts: tuple[str, ...], name: str) -> Path:
        """Return the path, or raise `ContextError` if a symbolic link in it leads out of the folder."""
        place = folder
        for part in parts:
            place /= part
            if place.is_symlink() and not place.resolve().is_relative_to(folder.resolve()):
                self._refuse(name, f"{part!r} is a symbolic link that leads out of the folder; remove it")
        return place

    def _refuse(self, name: object, why: str) -> NoReturn:
        raise ContextError(f"node {self._node!r}: {name!r} cannot be the name of an artifact: {why}")


def left(run_base: str | os.PathLike[str], run_id: str, flow: str, node: str) -> list[str]:
    """Return the names of the files in a node's folder after a crash, whichever attempt wrote them."""
    return sorted(name for name, _ in _walk(folder_of(run_base, run_id, flow, node)))


def folder_of(run_base: str | os.PathLike[str], run_id: str, flow: str, node: str) -> Path:
    """Return the folder with the files of a node's latest attempt that used one."""
    return _folder_of(run_folder.run_folder(run_base, run_id, flow) / run_folder.ARTIFACTS, node)


def _folder_of(folders: Path, node: str) -> Path:
    """Return the folder of a node. If another node has a name that this file system does not distinguish, a digest is added to
    the folder's name.
    """
    plain = folders / run_folder.part(node)
    owner = _user_of(plain)[1]
    return plain if owner in ("", node) else folders / f"{run_folder.part(node)}~{run_folder.mark(node)}"


def _user_of(folder: Path) -> tuple[str | None, str]:
    """Return the attempt and the node that a folder belongs to: (None, "") if there is no folder, ("", "") if that is unknown."""
    try:
        attempt, _, node = (folder / _VISIT).read_text("utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return ("" if os.path.lexists(folder) else None), ""
    return attempt, node


def _take(folder: Path, user: str, node: str) -> None:
    """Make a folder for this user (an attempt or an execution). If it belongs to another user, it is moved aside first."""
    if folder.is_symlink():
        raise ContextError(
            f"node {node!r}: its folder for artifacts, {folder}, is a symbolic link. Remove the link; "
            "Holdfast then creates the folder."
        )
    before = _user_of(folder)[0]
    if before == user:
        return
    make_folder(folder.parent)
    for begun in folder.parent.glob(
        f"{run_folder.TEMPORARY}*"
    ):  # left by a dead process: no other process uses this folder now
        shutil.rmtree(begun, ignore_errors=True)
    if before is not None:
        os.rename(folder, _aside(folder, before or "unknown"))
    begun = temporary(folder.parent)
    begun.mkdir(0o700)
    write_new(begun / _VISIT, f"{user}\n{node}".encode())
    sync_folder(begun)
    os.rename(begun, folder)
    sync_folder(folder.parent)


def _aside(folder: Path, user: str) -> Path:
    """Return the path to which the folder of an earlier attempt is moved."""
    place = folder.with_name(f"{folder.name}@{user}")
    count = 1
    while os.path.lexists(place):
        count += 1
        place = folder.with_name(f"{folder.name}@{user}~{count}")
    return place


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every file below a folder, without Holdfast's own files."""
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(run_folder.TEMPORARY)]
        for name in files:
            if name != _VISIT and not name.startswith(run_folder.TEMPORARY):
                file = Path(root, name)
                yield file.relative_to(folder).as_posix(), file


def _describe_file(file: Path) -> dict[str, Any]:
    """Sync a file to disk and return its size and digest."""
    digest, size = sha256(), 0
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ContextError(
                f"artifact {file} was replaced by something that is not a file. Write artifacts as regular files."
            )
        while piece := os.read(handle, 1 << 20):
            digest.update(piece)
            size += len(piece)
        sync_file(handle)
    finally:
        os.close(handle)
    return {"bytes": size, "sha256": digest.hexdigest()}
