import msgspec
import pytest

from holdfast.core import event_encoding, events
from holdfast.core.event_encoding import Encoded, decode, encode
from holdfast.core.events import KINDS
from holdfast.core.kinds import CHECKPOINTS
from holdfast.errors import SchemaTooNew, StoreCorrupt
from holdfast.testing.builders import example


def paused_in(version: int) -> event_encoding.Encoded:
    return event_encoding.Encoded("RunPaused", None, 0, 0, 0, b'{"v":%d,"by":"ann"}' % version)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_survives_its_encoding(kind):
    event = example(kind)
    assert decode(encode(event)) == event


def test_a_kind_is_stored_by_its_class_name():
    assert all(kind.__name__ == name for name, kind in KINDS.items())
    assert {encode(example(kind)).kind for kind in KINDS.values()} == set(KINDS)


def test_every_kind_in_the_module_belongs_to_the_closed_union():
    declared = {
        name
        for name, value in vars(events).items()
        if isinstance(value, type) and issubclass(value, events.Event)
    }
    assert declared - {"Event", "NodeEvent"} == set(KINDS)


def test_every_checkpoint_is_a_kind():
    assert set(KINDS) >= CHECKPOINTS


def test_the_header_of_a_node_is_kept_beside_the_body():
    encoded = encode(events.NodeStarted(node="a", iteration=2, execution=3, attempt=4))
    assert encoded == Encoded("NodeStarted", "a", 2, 3, 4, b"")


def test_a_body_holds_only_what_differs_from_the_defaults():
    encoded = encode(events.NodeCompleted(node="a", iteration=1, routes=["b"]))
    assert msgspec.json.decode(encoded.body) == {"routes": ["b"]}


def test_an_empty_route_is_not_an_undecided_one():
    assert decode(encode(events.NodeCompleted(node="a", iteration=1, routes=[]))).routes == []
    assert decode(encode(events.NodeCompleted(node="a", iteration=1))).routes is None


def test_an_event_cannot_be_changed():
    with pytest.raises(AttributeError):
        example(events.NodeStarted).node = "b"


def test_an_unknown_kind_is_refused_with_the_way_out():
    with pytest.raises(SchemaTooNew, match=r"'NodeTeleported'.*newer"):
        decode(Encoded("NodeTeleported", "a", 1, 1, 1, b""))


def test_a_newer_version_of_a_kind_is_refused():
    with pytest.raises(SchemaTooNew, match="version 2 of the event 'RunPaused'"):
        decode(Encoded("RunPaused", None, 0, 0, 0, b'{"v":2}'))


def test_an_older_version_of_a_kind_is_lifted(monkeypatch):
    monkeypatch.setattr(events.RunPaused, "VERSION", 3)
    monkeypatch.setitem(event_encoding.UPCASTERS, ("RunPaused", 1), lambda body: {"why": body["because"]})
    monkeypatch.setitem(event_encoding.UPCASTERS, ("RunPaused", 2), lambda body: {"reason": body["why"]})
    assert decode(Encoded("RunPaused", None, 0, 0, 0, b'{"because":"lunch"}')) == events.RunPaused(
        reason="lunch"
    )
    assert msgspec.json.decode(encode(events.RunPaused(reason="lunch")).body) == {"reason": "lunch", "v": 3}


@pytest.mark.parametrize("body", [b"{", b'"text"', b"[1]", b'{"routes": 7}', b'{"routes": [1]}', b"\xff\xfe"])
def test_a_body_that_cannot_be_read_is_corrupt(body):
    with pytest.raises(StoreCorrupt, match="NodeCompleted"):
        decode(Encoded("NodeCompleted", "a", 1, 1, 1, body))


def test_a_missing_field_is_corrupt():
    with pytest.raises(StoreCorrupt, match="RunClaimed"):
        decode(Encoded("RunClaimed", None, 0, 0, 0, b""))


def test_an_event_that_says_the_version_which_is_known_is_read():
    assert event_encoding.decode(paused_in(events.RunPaused.VERSION)) == events.RunPaused(by="ann")


def test_an_event_of_a_later_version_is_refused():
    with pytest.raises(
        SchemaTooNew, match="version 2 of the event 'RunPaused'; this Holdfast knows versions up to 1"
    ):
        event_encoding.decode(paused_in(events.RunPaused.VERSION + 1))
