"""What is too large for a log leaves the body, and comes back byte for byte."""

import json
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.event_encoding import Encoded, encode
from holdfast.core.events import KINDS, Changes, NodeCompleted
from holdfast.errors import BlobCorrupt, BlobMissing, StoreCorrupt
from holdfast.storage.memory.blobs import MemoryBlobs
from holdfast.storage.oversize import KEY, put_back, references, take_out
from holdfast.storage.rows import open_row, seal

BIG = "x" * 200


def taken(value, limit=100):
    """What is left of a body, and the blobs by pointer, as plain data."""
    written = msgspec.json.encode(value)
    body, blobs = take_out(written, limit)
    kept = MemoryBlobs()
    for blob in blobs:
        assert blob.digest == sha256(blob.body).hexdigest()
        kept.put(blob.digest, blob.body)
    assert put_back(body, kept) == written
    left = json.loads(body)
    found = left.pop(KEY, {})
    assert found == references(body)
    return left, {pointer: json.loads(kept.get(digest)) for pointer, digest in found.items()}


def test_a_body_within_the_limit_is_left_as_it_is():
    body = b'{"a":"' + b"x" * 92 + b'"}'
    assert len(body) == 100
    assert take_out(body, 100) == (body, ())
    assert take_out(body, 100)[0] is body
    assert put_back(body, MemoryBlobs()) is body


def test_text_over_the_limit_goes_and_what_is_not_over_it_stays():
    assert taken({"a": BIG, "b": "x" * 60, "c": 1}) == ({"a": None, "b": "x" * 60, "c": 1}, {"/a": BIG})


def test_the_parts_of_a_container_go_first():
    left, blobs = taken({"set": {"a": BIG, "b": [1, BIG + "y", {"c": BIG}], "d": 1}})
    assert left == {"set": {"a": None, "b": [1, None, {"c": None}], "d": 1}}
    assert blobs == {"/set/a": BIG, "/set/b/1": BIG + "y", "/set/b/2/c": BIG}


def test_a_container_goes_that_is_too_large_without_its_large_parts():
    many = {f"k{n}": n for n in range(50)}
    left, blobs = taken({"set": {"a": 1, "all": {**many, "big": BIG}}})
    assert left == {"set": {"a": 1, "all": None}}
    assert blobs == {"/set/all": {**many, "big": None}, "/set/all/big": BIG}


def test_a_body_whose_parts_are_all_small_goes_as_a_whole():
    value = {"a": "x" * 60, "b": "y" * 60}
    assert taken(value) == ({}, {"": value})
    assert taken({**value, "c": BIG}) == ({}, {"": {**value, "c": None}, "/c": BIG})


def test_equal_values_are_one_blob():
    body, blobs = take_out(msgspec.json.encode({"a": BIG, "b": [BIG], "c": BIG}), 100)
    assert len(blobs) == 1
    assert list(references(body)) == ["/a", "/b/0", "/c"]


def test_keys_are_escaped_as_in_a_json_pointer():
    awkward = {"a/b": {"~1": BIG, "": BIG, "0": [BIG]}, 'é"\n': BIG}
    _, blobs = taken(awkward)
    assert set(blobs) == {"/a~1b/~01", "/a~1b/", "/a~1b/0/0", '/é"\n'}


def test_a_value_that_looks_like_a_reference_is_a_value():
    for value in ({"set": {KEY: {"/a": "0" * 64}}}, {"set": {KEY: BIG}}, {"set": {"a": f'{{"{KEY}":{{}}}}'}}):
        taken(value)
        assert put_back(msgspec.json.encode(value), MemoryBlobs()) == msgspec.json.encode(value)


def test_no_event_and_no_snapshot_has_a_field_of_that_name():
    for kind in KINDS.values():
        assert all(field.encode_name.isidentifier() for field in msgspec.structs.fields(kind))
    assert not KEY.isidentifier()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=60),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=30,
)


@given(
    st.dictionaries(st.text(max_size=5).map(lambda name: f"f{name}"), VALUES, max_size=6), st.integers(1, 120)
)
def test_whatever_is_taken_out_comes_back_byte_for_byte(value, limit):
    taken(value, limit)


def test_an_event_comes_back_from_its_row():
    blobs = MemoryBlobs()
    event = NodeCompleted(node="a", iteration=1, changes=Changes(set={"text": BIG}), routes=["b"])
    small = Encoded("NodeStarted", "b", 1, 1, 1, b"")
    body, found = take_out(encode(event).body, 100)
    large = msgspec.structs.replace(encode(event), body=body)
    first, second = seal(b"", "r1", 0, 1.0, [large, small], bytes(32))
    assert len(first.body) < 200
    for blob in found:
        blobs.put(blob.digest, blob.body)
    assert msgspec.to_builtins(open_row(first, blobs).event) == msgspec.to_builtins(event)
    assert open_row(second, MemoryBlobs()).kind == "NodeStarted"


def test_a_reference_to_nothing_or_to_something_else_is_an_error_that_names_it():
    body, (blob,) = take_out(msgspec.json.encode({"a": BIG}), 100)
    blobs = MemoryBlobs("here")
    with pytest.raises(BlobMissing, match=f"{blob.digest} is missing from here"):
        put_back(body, blobs)
    blobs.put(blob.digest, b"something else")
    with pytest.raises(BlobCorrupt, match=f"{blob.digest} in here is damaged"):
        put_back(body, blobs)


@pytest.mark.parametrize(
    "body",
    [
        b'{"$blobs":',
        b'{"$blobs":[]}',
        b'{"$blobs":{"/a":1}}',
        b'{"$blobs":{"/a/b":"%s"}}',
        b'{"$blobs":{"/z/0":"%s"},"z":1}',
    ],
)
def test_references_that_cannot_be_read_are_damage(body):
    blobs = MemoryBlobs()
    digest = sha256(b"1").hexdigest()
    blobs.put(digest, b"1")
    with pytest.raises(StoreCorrupt, match="cannot be read"):
        put_back(body.replace(b"%s", digest.encode()), blobs)
