"""Prepare and check the path of a SQLite store before SQLite opens it; and make files and folders survive power loss.

Invariant: this module never opens a database file that may be in use, because closing any handle on it would drop the locks that
SQLite holds for this process. The file is opened here once, to create it (exclusively, 0600); after that, only `os.stat` is used.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from pathlib import Path

from holdfast.errors import StoreCorrupt, StoreUnusable

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a write that failed for lack of disk space."""

ALLOW_NETWORK = "HOLDFAST_ALLOW_NETWORK_FS"

# WAL needs shared memory and working locks between all users of the file: none of these file systems provides both.
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "davfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "smb2", "smb3", "smbfs", "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.cephfs", "fuse.davfs", "fuse.davfs2",
    "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.seaweedfs",
    "fuse.smbnetfs", "fuse.sshfs",
})  # fmt: skip

# While this module creates the file and closes its handle, no other thread may open the file through SQLite.
_creating = threading.Lock()


def prepare(path: str | os.PathLike[str]) -> str:
    """Make sure that a database file exists at `path`, and return its real path. Raises `StoreUnusable` if it cannot be
    created.
    """
    real = Path(path).expanduser().resolve()
    folder = real.parent
    try:
        make_folder(folder)
        _refuse_network(folder, real)
        if real.is_dir():
            raise StoreUnusable(
                f"{real} is a folder. Give the store the path of a file in it, e.g. {real}/runs.db."
            )
        _create(real, folder)
        _refuse_emptied(real)
    except OSError as fault:
        raise StoreUnusable(
            f"a store cannot be created at {real}: {fault.strerror or fault}. Choose a path that this user may "
            "write to."
        ) from fault
    return str(real)


def file_system(path: str, mountinfo: str) -> str:
    """Return the type of the file system of an absolute path, from the text of /proc/self/mountinfo; "" if unknown."""
    kind, longest = "", -1
    for line in mountinfo.splitlines():
        mount, found, after = line.partition(" - ")
        fields = mount.split(" ")
        if not found or len(fields) < 5:
            continue
        point = (
            fields[4]
            .replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\")
        )
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # a later mount on the same point hides the earlier one
            kind, longest = after.split(" ")[0], len(point)
    return kind


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably, and accessible only to their owner."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(0o700, exist_ok=True)
    sync_folder(folder.parent)


def sync_file(handle: int) -> None:
    """Make the content of a file survive power loss."""
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(handle)


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive power loss."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _refuse_network(folder: Path, path: Path) -> None:
    if os.environ.get(ALLOW_NETWORK) == "1":
        return
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return  # not Linux: the type of the file system cannot be found out
    kind = file_system(str(folder), mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnusable(
            f"{path} is on a network file system ({kind}), where SQLite loses data. "
            f"Choose a path on a local disk, or set {ALLOW_NETWORK}=1 if exactly one host ever uses it."
        )


def _create(path: Path, folder: Path) -> None:
    with _creating:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            return
    sync_folder(folder)


def _refuse_emptied(path: Path) -> None:
    """Refuse an empty database file that has a write-ahead log: the database was truncated, and SQLite would silently create a
    new one.

    The log is checked first, because a process that creates a store writes the database before it begins a log.
    """
    try:
        log_bytes = Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return
    if log_bytes and path.stat().st_size == 0:
        raise StoreCorrupt(
            f"{path} is empty, but its write-ahead log ({path}-wal) still has data. Restore the database file "
            "from a copy, or move both files away to start a new store."
        )
