"""Every place for blobs passes the suite; and what is special about a folder, and about fsspec."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys

import fsspec
import pytest

from holdfast.errors import (
    BlobMissing,
    SettingError,
    StoreBusy,
    StoreFull,
    StorePoisoned,
    StoreUnusable,
)
from holdfast.storage.blobs import Blob
from holdfast.storage.files import disk
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.remote import FsspecBlobs
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.urls import open_blobs, open_store
from holdfast.testing.blobs import BlobsConformance


@pytest.fixture
def blobs(tmp_path):
    return FileBlobs(tmp_path / "runs.db.blobs")


def put(blobs, body=b"x" * 1000):
    blob = Blob.of(body)
    blobs.put(blob.digest, blob.body)
    return blob.digest


LATER = 4e9


class Killed(BaseException):
    pass


@pytest.fixture
def blob():
    return Blob.of(b"a value that a run refers to")


@pytest.fixture
def put_aside(blobs, blob, monkeypatch):
    """Put a blob that is old; somebody puts it again while it is removed, and who removes it dies right then."""
    blobs.put(blob.digest, blob.body)
    os.utime(blobs._path(blob.digest), (1.0, 1.0))
    replace = os.replace

    def meanwhile(source, target):
        FileBlobs(blobs.folder).put(blob.digest, blob.body)  # it is acknowledged: a run may refer to it
        replace(source, target)
        raise Killed

    with monkeypatch.context() as other:
        other.setattr(os, "replace", meanwhile)
        with pytest.raises(Killed):
            blobs.expire(blob.digest, 1_000.0)


class TestMemoryBlobs(BlobsConformance):
    persistent = False

    def open(self, folder):
        return MemoryBlobs()

    def alter(self, digest, change):
        self.blobs._kept[digest] = change(self.blobs._kept[digest])


class TestFileBlobs(BlobsConformance):
    def open(self, folder):
        return FileBlobs(folder / "blobs")

    def alter(self, digest, change):
        path = self.folder / "blobs" / digest[:2] / digest[2:4] / digest
        path.write_bytes(change(path.read_bytes()))


class TestFsspecBlobsInMemory(BlobsConformance):
    def open(self, folder):
        self.root = f"/{folder.name}"
        return FsspecBlobs(f"memory:/{self.root}", spills=FileBlobs(folder / "spills"))

    def alter(self, digest, change):
        files = fsspec.filesystem("memory")
        path = f"{self.root}/{digest[:2]}/{digest[2:4]}/{digest}"
        files.pipe_file(path, change(files.cat_file(path)))


class TestFsspecBlobsInFiles(TestFileBlobs):
    def open(self, folder):
        return FsspecBlobs(f"file://{folder}/blobs", spills=FileBlobs(folder / "spills"))


# --- a folder ----------------------------------------------------------------------------------------


def test_files_and_folders_are_made_for_their_owner_only(blobs):
    old = os.umask(0)
    try:
        put(blobs)
        blobs.spill("r1", "a", b"x")
    finally:
        os.umask(old)
    found = [blobs.folder, *blobs.folder.rglob("*")]
    assert len(found) == 7
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_reading_makes_no_folder(blobs):
    assert list(blobs.digests()) == []
    assert blobs.spilled("r1") == {}
    blobs.unspill("r1", ["a"])
    blobs.delete("0" * 64)
    with pytest.raises(BlobMissing):
        blobs.get("0" * 64)
    assert not blobs.folder.exists()


def test_a_blob_is_two_folders_deep_and_compressed(blobs):
    digest = put(blobs, b"x" * 1_000_000)
    path = blobs.folder / digest[:2] / digest[2:4] / digest
    assert path.stat().st_size < 1000
    assert os.listdir(path.parent) == [digest]


def test_the_folder_of_a_run_goes_with_its_last_stream(blobs):
    blobs.spill("r1", "a", b"x")
    blobs.spill("r1", "b", b"x")
    blobs.unspill("r1", ["a"])
    assert os.listdir(blobs.folder / "spills") == ["r1"]
    blobs.unspill("r1", ["b"])
    assert os.listdir(blobs.folder / "spills") == []


@pytest.mark.parametrize("left", [0, 1, 11, 13, 20])
def test_a_torn_record_is_dropped_and_what_follows_stands_behind_the_last_whole_one(blobs, left):
    blobs.spill("r1", "a", b"whole, ")
    (path,) = (blobs.folder / "spills" / "r1").iterdir()
    size = path.stat().st_size
    blobs.spill("r1", "a", b"torn by a crash")
    assert path.stat().st_size == size + 12 + 15
    os.truncate(path, size + left)
    again = FileBlobs(blobs.folder)
    assert again.spilled("r1") == {"a": b"whole, "}
    again.spill("r1", "a", b"and more")
    assert FileBlobs(blobs.folder).spilled("r1") == {"a": b"whole, and more"}


@pytest.mark.parametrize("left", [0, 5, 12, 14])
def test_a_stream_that_was_torn_at_its_beginning_begins_again(blobs, left):
    blobs.spill("r1", "a", b"x")
    (path,) = (blobs.folder / "spills" / "r1").iterdir()
    os.truncate(path, left)
    again = FileBlobs(blobs.folder)
    assert again.spilled("r1") == {}
    again.spill("r1", "a", b"y")
    assert again.spilled("r1") == {"a": b"y"}


@pytest.mark.parametrize("tail", [b"\x00" * 4096, b"\xff" * 4096])
def test_a_tail_that_power_loss_left_is_no_record(blobs, tail):
    blobs.spill("r1", "a", b"x")
    (path,) = (blobs.folder / "spills" / "r1").iterdir()
    with path.open("ab") as file:
        file.write(tail)
    assert FileBlobs(blobs.folder).spilled("r1") == {"a": b"x"}


def test_a_record_of_the_right_length_that_power_loss_altered_is_dropped(blobs):
    blobs.spill("r1", "a", b"whole")
    blobs.spill("r1", "a", b"this never reached the disk")
    (path,) = (blobs.folder / "spills" / "r1").iterdir()
    stored = path.read_bytes()
    path.write_bytes(stored[:-9] + b"\x00" * 9)
    assert FileBlobs(blobs.folder).spilled("r1") == {"a": b"whole"}


CHILD = """
import os, signal, sys
from holdfast.storage.blobs import Blob
from holdfast.storage.files.blobs import FileBlobs
blobs = FileBlobs(sys.argv[1])
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
{body}
"""


def killed_in(folder, body):
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(body=body), str(folder)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_spill_survives_sigkill(blobs):
    killed_in(blobs.folder, "for n in range(100): blobs.spill('r1', 'a', b'%d,' % n)\ndie()")
    assert blobs.spilled("r1") == {"a": b"".join(b"%d," % n for n in range(100))}


def test_a_spill_that_is_killed_half_way_leaves_what_was_acknowledged(blobs):
    half = "write = os.write\nos.write = lambda handle, data: (write(handle, data[: len(data) // 2]), die())"
    killed_in(blobs.folder, f"blobs.spill('r1', 'a', b'kept')\n{half}\nblobs.spill('r1', 'a', b'torn' * 99)")
    assert blobs.spilled("r1") == {"a": b"kept"}
    blobs.spill("r1", "a", b", and on")
    assert blobs.spilled("r1") == {"a": b"kept, and on"}


@pytest.mark.parametrize("place", ["os.replace", "os.fdatasync"])
def test_a_put_that_is_killed_half_way_leaves_no_blob(blobs, place):
    killed_in(blobs.folder, f"{place} = die\nblob = Blob.of(b'x' * 1000)\nblobs.put(blob.digest, blob.body)")
    assert list(blobs.digests()) == []
    assert blobs.get(put(blobs)) == b"x" * 1000


def test_a_put_and_a_spill_are_synced_with_every_name_that_leads_to_them(blobs, monkeypatch):
    files, folders = [], []
    sync_file, sync_folder = disk.sync_file, disk.sync_folder
    monkeypatch.setattr(disk, "sync_file", lambda handle: files.append(sync_file(handle)))
    monkeypatch.setattr(disk, "sync_folder", lambda folder: folders.append(folder) or sync_folder(folder))
    digest = put(blobs)
    way = [
        blobs.folder / digest[:2] / digest[2:4],
        blobs.folder / digest[:2],
        blobs.folder,
        blobs.folder.parent,
    ]
    assert len(files) == 1
    assert folders[-4:] == way
    folders.clear()
    put(FileBlobs(blobs.folder))
    assert (len(files), folders) == (1, way)  # who put it first may not have come so far
    folders.clear()
    blobs.spill("r1", "a", b"x")
    assert folders[-4:] == [
        blobs.folder / "spills" / "r1",
        blobs.folder / "spills",
        blobs.folder,
        blobs.folder.parent,
    ]
    folders.clear()
    blobs.spill("r1", "a", b"y")
    assert (len(files), folders) == (3, [])


def test_a_failed_sync_poisons_the_place_for_good(blobs, monkeypatch):
    put(blobs, b"before")

    def fail(handle):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as sick:
        sick.setattr(disk, "sync_file", fail)
        with pytest.raises(StorePoisoned, match=r"runs\.db\.blobs.*Input/output error.*restart the process"):
            put(blobs, b"lost")
    for write in (lambda: put(blobs, b"later"), lambda: blobs.spill("r1", "a", b"x")):
        with pytest.raises(StorePoisoned):
            write()
    assert blobs.get(Blob.of(b"before").digest) == b"before"
    assert list(FileBlobs(blobs.folder).digests()) == [Blob.of(b"before").digest]


def test_a_sync_that_finds_no_space_poisons_nothing(blobs, monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(disk, "sync_file", fail)
        with pytest.raises(StoreFull):
            put(blobs)
    assert blobs.get(put(blobs)) == b"x" * 1000


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    blobs = FileBlobs(tmp_path / "file" / "blobs")
    for write in (lambda: put(blobs), lambda: blobs.spill("r1", "a", b"x")):
        with pytest.raises(StoreUnusable, match=r"file/blobs cannot be used for blobs: .*setting `blobs`"):
            write()


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_told_and_takes_nothing_that_was_there(small_disk):
    blobs = FileBlobs(small_disk / "blobs")
    kept = put(blobs, os.urandom(50_000))
    blobs.spill("r1", "a", b"kept")
    with pytest.raises(StoreFull, match=r"no space left for .*blobs.*Free some space and resume"):
        put(blobs, os.urandom(400_000))
    with pytest.raises(StoreFull, match="no space left"):
        blobs.spill("r1", "a", os.urandom(400_000))
    assert FileBlobs(blobs.folder).spilled("r1") == {"a": b"kept"}
    assert list(blobs.digests()) == [kept]
    assert [path.name for path in blobs.folder.rglob(".*")] == []
    blobs.spill("r1", "a", b", more")
    assert blobs.spilled("r1") == {"a": b"kept, more"}


# --- URLs and fsspec ---------------------------------------------------------------------------------


def test_a_url_leads_to_its_kind_of_place(tmp_path):
    spills = MemoryBlobs()
    for url in (tmp_path / "b", str(tmp_path / "b"), f"file://{tmp_path}/b"):
        assert open_blobs(url, spills=spills).where == str(tmp_path / "b")
    assert open_blobs(f"file://{tmp_path}/a%20b", spills=spills).where == str(tmp_path / "a b")
    assert open_blobs("memory://x", spills=spills) is open_blobs("memory://x", spills=spills)
    assert isinstance(open_blobs(f"local://{tmp_path}/b", spills=spills), FsspecBlobs)


def test_a_store_keeps_its_blobs_where_it_is_told(tmp_path):
    store = open_store(tmp_path / "runs.db", blobs=tmp_path / "elsewhere")
    assert store.blobs.where == str(tmp_path / "elsewhere")
    store.close()
    store = open_store(tmp_path / "runs.db")
    assert store.blobs.where == str(tmp_path / "runs.db.blobs")
    store.close()
    assert open_store("memory://blobs-a").blobs is open_store("memory://blobs-a").blobs
    assert open_store("memory://blobs-a").blobs is not open_store("memory://blobs-b").blobs


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "gss://me:geheim@bucket/x?token=geheim",
            "fsspec does not know the scheme 'gss'; did you mean 'gs'?",
        ),
        ("hdfs://me:geheim@host/x", "need a package that is not installed"),
        ("file://", "three slashes"),
        ("file:/x", "three slashes"),
        ("memory://a/b", "memory://name"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_telling_its_password(url, message):
    with pytest.raises(SettingError) as refusal:
        open_blobs(url, spills=MemoryBlobs())
    assert message in str(refusal.value)
    assert "geheim" not in str(refusal.value)


def test_without_fsspec_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(
        SettingError, match=r"s3://bucket/x needs the package fsspec: pip install 'holdfast\[blobs\]'"
    ):
        open_blobs("s3://key:geheim@bucket/x", spills=MemoryBlobs())


def test_a_far_place_that_does_not_answer_is_busy_and_one_that_refuses_unusable(tmp_path):
    (tmp_path / "file").write_text("")
    far = FsspecBlobs(f"file://{tmp_path}/file/blobs", spills=MemoryBlobs())
    with pytest.raises(StoreBusy, match=r"file/blobs cannot be reached \(.*try again"):
        put(far)


# --- a blob that stands aside ------------------------------------------------------------------------


@pytest.mark.usefixtures("put_aside")
def test_a_blob_that_stands_aside_is_still_read(blobs, blob):
    assert not blobs._path(blob.digest).exists()
    assert blobs.get(blob.digest) == blob.body


@pytest.mark.usefixtures("put_aside")
def test_whoever_tidies_gives_a_blob_that_stands_aside_its_name_back(blobs, blob):
    assert blobs.tidy(LATER) == 0  # nothing of it was removed
    assert list(blobs.digests()) == [blob.digest]
    assert blobs.get(blob.digest) == blob.body
    assert os.listdir(blobs._path(blob.digest).parent) == [blob.digest]


@pytest.mark.usefixtures("put_aside")
def test_a_blob_that_stands_aside_may_go_so_whoever_wants_it_puts_it_anew(blobs, blob):
    blobs.put(blob.digest, blob.body)
    assert list(blobs.digests()) == [blob.digest]
    young = blobs._path(blob.digest).stat()
    assert blobs.tidy(LATER) == 0
    assert blobs._path(blob.digest).stat() == young  # it is no older for that
    assert os.listdir(blobs._path(blob.digest).parent) == [blob.digest]


def test_a_blob_that_has_its_name_back_when_it_was_looked_for_aside_is_read(blobs, blob, monkeypatch):
    blobs.put(blob.digest, blob.body)
    path = blobs._path(blob.digest)
    aside = path.with_name(f".{blob.digest}-expired")
    path.rename(aside)
    read = type(path).read_bytes

    def while_it_is_given_back(place):
        if place == aside:
            aside.rename(path)
        return read(place)

    monkeypatch.setattr(type(path), "read_bytes", while_it_is_given_back)
    assert blobs.get(blob.digest) == blob.body


def test_what_a_killed_put_has_left_is_removed_and_is_no_blob(blobs, blob):
    blobs.put(blob.digest, blob.body)
    piece = blobs._path(blob.digest).with_name(".12345678-abc")
    piece.write_bytes(b"half of")
    assert blobs.tidy(LATER) == 1
    assert os.listdir(piece.parent) == [blob.digest]
    blobs.delete(blob.digest)
    with pytest.raises(BlobMissing):
        blobs.get(blob.digest)
