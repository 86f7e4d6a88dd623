"""The suite that every blob store must pass: the rules of `holdfast.storage.blobs` as tests.

    from holdfast.testing.blobs import BlobsConformance

    class TestMyBlobs(BlobsConformance):
        def open(self, folder):
            return MyBlobs(folder)

        def alter(self, digest, change):
            ...  # stored bytes = change(stored bytes)

Run it with pytest (importing it does not need pytest). `open` is called several times within a test: each call must open the
same data. A blob store that is empty when it is opened again sets `persistent = False`.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from holdfast.errors import BlobCorrupt, BlobMissing, SettingError
from holdfast.storage.blobs import Blob, Blobs, Piece
from holdfast.testing.appends import in_threads, raises

KEYS = ("a", "A", "write.1.1.1", "", ".", "..", "../../x", "/etc/passwd", "a/b", "%2e", "\\", " ", "\n", "é", "日本", "🐙",
        "\x00", "\ud800", "con", "x" * 5_000)  # fmt: skip
NO_DIGESTS = ("", "ab", "../../../x", "/" * 64, "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "\n")
FAR_AWAY = 1e11
NO_RUN_IDS = ("", ".", "..", "../r1", "a/b", ".hidden", "x" * 129, "r1\n", "\ud800")


class BlobsConformance:
    """Tests for everything that a blob store promises. Subclass it, name the class `Test…`; implement `open` and `alter`."""

    persistent = True

    def open(self, folder: Path) -> Blobs:
        """Open the blob store in this folder."""
        raise NotImplementedError("implement open(folder): return your blob store, opened in that folder")

    def alter(self, digest: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the stored bytes of a blob by `change(stored bytes)`."""
        raise NotImplementedError("implement alter(digest, change): replace the stored bytes of a blob")

    def setup_method(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-"))
        self.blobs = self.open(self.folder)

    def teardown_method(self) -> None:
        shutil.rmtree(self.folder)

    def put(self, body: bytes) -> str:
        blob = Blob.of(body)
        self.blobs.put(blob.digest, blob.body)
        return blob.digest

    # --- blobs ---------------------------------------------------------------------------------------

    def test_what_was_put_is_got_back(self) -> None:
        for body in (
            b"",
            b"x",
            b'"text"',
            bytes(range(256)),
            b"a" * 3_000_000,
            random.Random(1).randbytes(2_000_000),
        ):
            digest = self.put(body)
            assert digest == sha256(body).hexdigest()
            assert self.blobs.get(digest) == body
            if self.persistent:
                assert self.open(self.folder).get(digest) == body

    def test_equal_content_is_stored_once_and_listed_in_order(self) -> None:
        digests = {self.put(body) for body in (b"one", b"two", b"three", b"one", b"two")}
        assert list(self.blobs.digests()) == sorted(digests)
        assert len(digests) == 3

    def test_a_place_where_nothing_was_put_is_empty(self) -> None:
        assert list(self.blobs.digests()) == []
        assert self.blobs.spilled("r1") == {}
        self.blobs.unspill("r1", ["a"])
        self.blobs.delete("0" * 64)

    def test_a_blob_that_is_not_there_is_named_with_its_place(self) -> None:
        self.put(b"another")
        with raises(BlobMissing, "0" * 64, self.blobs.where, "Restore it from a backup"):
            self.blobs.get("0" * 64)

    def test_a_deleted_blob_is_gone_and_may_be_put_again(self) -> None:
        kept, gone = self.put(b"kept"), self.put(b"gone")
        self.blobs.delete(gone)
        self.blobs.delete(gone)
        with raises(BlobMissing, gone):
            self.blobs.get(gone)
        assert list(self.blobs.digests()) == [kept]
        assert self.blobs.get(self.put(b"gone")) == b"gone"

    def test_a_blob_expires_only_if_it_was_last_put_before_that_time(self) -> None:
        old, young = self.put(b"old"), self.put(b"young")
        assert not self.blobs.expire(old, 1.0)
        assert not self.blobs.expire("0" * 64, FAR_AWAY)
        assert all(not self.blobs.expire(no_digest, FAR_AWAY) for no_digest in NO_DIGESTS)
        assert self.blobs.expire(old, FAR_AWAY)
        assert not self.blobs.expire(old, FAR_AWAY)
        assert list(self.blobs.digests()) == [young]
        assert self.blobs.get(self.put(b"old")) == b"old"
        assert self.blobs.tidy(FAR_AWAY) == 0

    def test_the_clock_of_the_place_says_when_a_blob_was_put(self) -> None:
        digest = self.put(b"just now")
        assert not self.blobs.expire(digest, self.blobs.now() - 60.0)
        assert self.blobs.expire(digest, self.blobs.now() + 60.0)
        assert list(self.blobs.digests()) == []

    def test_an_altered_blob_is_found_and_named(self) -> None:
        body = random.Random(2).randbytes(5_000)
        changes: tuple[Callable[[bytes], bytes], ...] = (
            lambda stored: stored[:-1],
            lambda stored: stored[: len(stored) // 2],
            lambda stored: b"",
            lambda stored: b"\x00" * len(stored),
            lambda stored: b"plain text",
            *(
                lambda stored, at=at: stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
                for at in (0, 2500, 4999)
            ),
        )
        for change in changes:
            digest = self.put(body)
            self.alter(digest, change)
            with raises(BlobCorrupt, digest, self.blobs.where, "damaged"):
                self.blobs.get(digest)
            self.blobs.delete(digest)

    def test_a_size_that_a_damaged_head_claims_is_not_believed(self) -> None:
        digest = self.put(b"x" * 1000)
        self.alter(digest, lambda stored: b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 7 + b"\x0f" + stored[7:])
        with raises(BlobCorrupt, digest):
            self.blobs.get(digest)

    def test_a_blob_that_was_cut_is_mended_when_its_content_is_put_again(self) -> None:
        digest = self.put(b"x" * 1000)
        self.alter(digest, lambda stored: stored[:-3])
        self.put(b"x" * 1000)
        assert self.blobs.get(digest) == b"x" * 1000

    def test_a_name_that_is_no_digest_leads_nowhere(self) -> None:
        self.put(b"x")
        for name in NO_DIGESTS:
            with raises(SettingError, "sha256"):
                self.blobs.put(name, b"x")
            with raises(BlobMissing):
                self.blobs.get(name)
            self.blobs.delete(name)
        assert len(list(self.blobs.digests())) == 1

    def test_many_threads_may_put_the_same_content_at_once(self) -> None:
        bodies = [bytes([n]) * 50_000 for n in range(8)]

        def put_all() -> None:
            for body in bodies:
                assert self.blobs.get(self.put(body)) == body

        in_threads(6, put_all)
        assert len(list(self.blobs.digests())) == len(bodies)

    # --- partial streams -----------------------------------------------------------------------------

    def test_what_was_spilled_is_read_back_in_order(self) -> None:
        for part in (b"one ", b"", b"two ", b"three"):
            self.blobs.spill("r1", "a", part)
        self.blobs.spill("r1", "b", b"\x00" * 40)
        self.blobs.spill("r2", "a", b"another run")
        assert self.blobs.spilled("r1") == {"a": b"one two three", "b": b"\x00" * 40}
        assert self.blobs.spilled("r2") == {"a": b"another run"}
        assert self.blobs.spilled("r3") == {}
        assert self.blobs.spilling() == ["r1", "r2"]
        if self.persistent:
            again = self.open(self.folder)
            again.spill("r1", "a", b", four")
            assert again.spilled("r1")["a"] == b"one two three, four"

    def test_a_stream_may_have_any_key_and_the_keys_are_ordered(self) -> None:
        for key in KEYS:
            self.blobs.spill("r1", key, f"{len(key)} {key[:9]!r}".encode())
        found = self.blobs.spilled("r1")
        assert list(found) == sorted(KEYS)
        assert found == {key: f"{len(key)} {key[:9]!r}".encode() for key in KEYS}
        self.blobs.unspill("r1", KEYS[1:])
        assert list(self.blobs.spilled("r1")) == [KEYS[0]]

    def test_a_removed_stream_begins_anew(self) -> None:
        self.blobs.spill("r1", "a", b"old")
        self.blobs.spill("r1", "b", b"kept")
        self.blobs.unspill("r1", ["a", "never there"])
        assert self.blobs.spilled("r1") == {"b": b"kept"}
        self.blobs.unspill("r1", ["b"])
        assert self.blobs.spilled("r1") == {}
        assert self.blobs.spilling() == []
        self.blobs.spill("r1", "a", b"new")
        assert self.blobs.spilled("r1") == {"a": b"new"}

    def test_streams_are_read_on_from_their_marks(self) -> None:
        assert self.blobs.spilled_after({"r1": {}, "r2": {"a": 7}}) == {}
        self.blobs.spill("r1", "a", b"one")
        self.blobs.spill("r1", "b", b"x")
        self.blobs.spill("r2", "a", b"other")
        first = self.blobs.spilled_after({"r1": {}, "r2": {}, "r3": {}})
        assert _data(first) == {"r1": {"a": b"one", "b": b"x"}, "r2": {"a": b"other"}}
        self.blobs.spill("r1", "a", b"two")
        self.blobs.spill("r1", "a", b"three")
        self.blobs.spill("r1", "c", b"new")
        second = self.blobs.spilled_after(_marks(first))
        assert _data(second) == {"r1": {"a": b"twothree", "b": b"", "c": b"new"}, "r2": {"a": b""}}
        assert _data(self.blobs.spilled_after(_marks(second))) == {
            "r1": {"a": b"", "b": b"", "c": b""},
            "r2": {"a": b""},
        }
        assert _data(self.blobs.spilled_after({"r1": {}})) == {
            "r1": {"a": b"onetwothree", "b": b"x", "c": b"new"}
        }
        assert not any(piece.anew for streams in second.values() for piece in streams.values())

    def test_a_stream_that_begins_anew_is_read_from_its_beginning(self) -> None:
        for part in (b"old one", b"old two"):
            self.blobs.spill("r1", "a", part)
        marks = _marks(self.blobs.spilled_after({"r1": {}}))
        self.blobs.unspill("r1", ["a"])
        assert self.blobs.spilled_after(marks) == {}
        self.blobs.spill("r1", "a", b"new")
        piece = self.blobs.spilled_after(marks)["r1"]["a"]
        assert (piece.data, piece.anew) == (b"new", True)

    def test_any_key_of_a_stream_can_be_read_on(self) -> None:
        for key in KEYS:
            self.blobs.spill("r1", key, b"one")
        marks = _marks(self.blobs.spilled_after({"r1": {}}))
        assert list(marks["r1"]) == sorted(KEYS)
        for key in KEYS:
            self.blobs.spill("r1", key, b"two")
        assert _data(self.blobs.spilled_after(marks)) == {"r1": dict.fromkeys(sorted(KEYS), b"two")}

    def test_runs_whose_ids_differ_in_case_only_are_two(self) -> None:
        self.blobs.spill("run", "a", b"small")
        self.blobs.spill("RUN", "a", b"large")
        self.blobs.unspill("run", ["a"])
        assert (self.blobs.spilled("run"), self.blobs.spilled("RUN")) == ({}, {"a": b"large"})

    def test_what_is_no_run_id_is_refused_by_every_verb(self) -> None:
        for run_id in NO_RUN_IDS:
            for use in (
                lambda run: self.blobs.spill(run, "a", b"x"),
                self.blobs.spilled,
                lambda run: self.blobs.spilled_after({run: {}}),
                lambda run: self.blobs.unspill(run, ["a"]),
            ):
                with raises(SettingError, "is not a valid run id"):
                    use(run_id)

    def test_blobs_and_streams_do_not_meet(self) -> None:
        digest = self.put(b"x")
        self.blobs.spill("r1", digest, b"stream")
        assert list(self.blobs.digests()) == [digest]
        self.blobs.unspill("r1", [digest])
        assert self.blobs.get(digest) == b"x"

    def test_many_threads_may_spill_at_once(self) -> None:
        def spill() -> None:
            for _ in range(20):
                self.blobs.spill("r1", "a", b"0123456789")

        in_threads(5, spill)
        assert self.blobs.spilled("r1") == {"a": b"0123456789" * 100}


def _data(found: dict[str, dict[str, Piece]]) -> dict[str, dict[str, bytes]]:
    return {run_id: {key: piece.data for key, piece in streams.items()} for run_id, streams in found.items()}


def _marks(found: dict[str, dict[str, Piece]]) -> dict[str, dict[str, int]]:
    return {run_id: {key: piece.mark for key, piece in streams.items()} for run_id, streams in found.items()}
