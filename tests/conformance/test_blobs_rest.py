"""A blob that stands aside: somebody was about to remove it for its age, and was killed before it had looked twice."""

import os

import pytest

from holdfast.errors import BlobMissing
from holdfast.storage.blobs import Blob, FileBlobs

LATER = 4e9


class Killed(BaseException):
    pass


@pytest.fixture
def blobs(tmp_path):
    return FileBlobs(tmp_path / "blobs")


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
