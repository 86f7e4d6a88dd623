"""What a node or a router gets is what is stored, whatever other code has done to its own input: large values are handed on only
if nobody can tell. Random runs are compared with those of an engine that copies the whole state for every call.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
import gc
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import END, START, Graph, append, merge
from holdfast.core.state import StateType
from holdfast.errors import CodecError, Recoverable
from holdfast.runtime import inputs, journal, outcomes, proofs
from holdfast.runtime.inputs import Inputs
from holdfast.runtime.proofs import Proof
from holdfast.runtime.runner import Runner
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.rows import open_row

ROUNDS = 4


class Colour(enum.StrEnum):
    RED = "red"


# --- the five kinds of state -----------------------------------------------------------------------------


@dataclasses.dataclass
class Row:
    name: str
    tags: list[str]


class StructRow(msgspec.Struct):
    name: str
    tags: list[str]


class ModelRow(pydantic.BaseModel):
    name: str
    tags: list[str]


@dataclasses.dataclass
class DataclassState:
    rows: list[Row]
    table: Annotated[dict[str, Any], merge]
    log: Annotated[list[dict[str, Any]], append]
    n: int = 0


class StructState(msgspec.Struct):
    rows: list[StructRow]
    table: Annotated[dict[str, Any], merge]
    log: Annotated[list[dict[str, Any]], append]
    n: int = 0


class ModelState(pydantic.BaseModel):
    rows: list[ModelRow]
    table: Annotated[dict[str, Any], merge]
    log: Annotated[list[dict[str, Any]], append]
    n: int = 0


class TypedDictState(TypedDict):
    rows: list[dict[str, Any]]
    table: Annotated[dict[str, Any], merge]
    log: Annotated[list[dict[str, Any]], append]
    n: int


KINDS: dict[str, Any] = {
    "dict": dict,
    "TypedDict": TypedDictState,
    "dataclass": DataclassState,
    "msgspec": StructState,
    "pydantic": ModelState,
}

# --- what nodes do to their input ------------------------------------------------------------------------


def field(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


def parts(state: Any) -> list[Any]:
    """Return every list, dict and object with fields inside a state, from the outside to the inside."""
    found, todo = [], [field(state, name) for name in ("rows", "table", "log")]
    while todo:
        part = todo.pop(0)
        found.append(part)
        inner = part if isinstance(part, list) else vars_of(part).values()
        todo += [one for one in inner if isinstance(one, (list, dict)) or hasattr(one, "tags")]
    return found


def vars_of(part: Any) -> dict[str, Any]:
    return part if isinstance(part, dict) else {"name": part.name, "tags": part.tags}


def change(part: Any, way: int) -> None:
    """Change one container in place, in one of several ways. Some of the changes look the same in JSON."""
    if isinstance(part, list):
        match way % 4:
            case 0:
                part.append("more")
            case 1 if part:
                part.pop()
            case 2 if part:
                part[0] = Colour(part[0]) if part[0] == "red" else "other"
            case _:
                part.reverse()
    elif isinstance(part, dict):
        key = next(iter(part), "key")
        match way % 4:
            case 0:
                part["new"] = ["of", "this"]
            case 1 if part:
                part[key if way > 4 else "renamed"] = part.pop(key)
            case 2 if part and isinstance(part[key], str):
                part[key] = Colour.RED if part[key] == "red" else dt.date(2026, 1, 1)
            case _:
                part.update(dict.fromkeys(part, 1))
    elif way % 2:
        part.tags = [*part.tags]
    else:
        part.name += "!"


class World:
    """What the code of one run remembers and does later, and what its nodes and its router have seen."""

    def __init__(self, acts: list[Any]) -> None:
        self.acts = acts
        self.seen: dict[tuple[Any, ...], str] = {}
        self.kept: list[Any] = []
        self.fails = True
        self.later: set[asyncio.Task[None]] = set()

    def see(self, *what: Any) -> Callable[[Any], None]:
        def note(state: Any) -> None:
            number = sum(known[:-1] == what for known in self.seen)
            self.seen[(*what, number)] = repr(state)

        return note

    async def act(self, state: Any, turn: int) -> Any:
        """Do what this turn is about to an input, and return what the node returns."""
        kind, place, way = self.acts[turn % len(self.acts)]
        found = parts(state)
        part = found[place % len(found)]
        n = {"n": field(state, "n")}
        match kind:
            case "change":
                change(part, way)
            case "keep":
                self.kept.append(part)
            case "replace":  # by an equal object, and both are kept
                outer = field(state, "rows")
                if outer and isinstance(outer[0], dict):
                    self.kept += [outer[0], new := dict(outer[0])]
                    outer[0] = new
            case "change kept":
                for one in self.kept:
                    change(one, way)
            case "task":
                self.later.add(asyncio.ensure_future(self._change_later(part, way)))
            case "thread":
                thread = threading.Thread(target=change, args=(part, way))
                thread.start()
                thread.join()
            case "fail":
                change(part, way)
                if len(self.kept) % 2 == 0:
                    self.kept.append(part)
                    raise Recoverable("once")
            case "whole":
                plain_change(state, way)
                return state
            case "grow":
                return n | {"log": [{"text": f"{turn}", "of": [turn]}]}
            case "enter":
                return n | {"table": {f"k{way % 3}": {"turn": [turn]}}}
            case "set":
                rows = field(state, "rows")
                return n | {"rows": rows[: 1 + way % 4]}
        return n

    async def _change_later(self, part: Any, way: int) -> None:
        for _ in range(way % 5):
            await asyncio.sleep(0)
        change(part, way)


def plain_change(state: Any, way: int) -> None:
    """Change a state in a way that its type allows, so that the node can return it."""
    if way % 3 == 0:
        field(state, "log").append({"text": "whole", "of": [way]})
    elif way % 3 == 1:
        field(state, "table")["whole"] = [way]
    else:
        for row in field(state, "rows")[:1]:
            field(row, "tags").append("whole")
        field(state, "log")[:0] = field(state, "log")[-1:] if way > 4 else []
        field(state, "log").append({"text": Colour.RED, "of": []})


def flow(kind: str, world: World) -> hf.Flow[Any]:
    graph: Graph[Any] = Graph("handed", KINDS[kind])
    retry = hf.Retry(attempts=3, backoff=0.0, jitter=0.0)

    @graph.node(retry=retry)
    async def step(state: Any, ctx: hf.Context) -> Any:
        world.see("step", ctx.iteration, ctx.attempt)(state)
        returned = await world.act(state, ctx.iteration)
        if isinstance(returned, dict) and returned is not state:
            returned["n"] += 1
        elif isinstance(state, dict):
            state["n"] += 1
        else:
            state.n += 1
        return returned

    @graph.node
    async def left(state: Any, ctx: hf.Context) -> Any:
        world.see("left", ctx.iteration)(state)
        await beside(state, ctx.iteration + 1)
        return {"log": [{"text": "left", "of": []}]}

    @graph.node
    async def right(state: Any, ctx: hf.Context) -> Any:
        world.see("right", ctx.iteration)(state)
        await beside(state, ctx.iteration + 2)

        return {"table": {"right": {"turn": [ctx.iteration]}}}

    async def beside(state: Any, turn: int) -> None:
        _, place, way = world.acts[turn % len(world.acts)]
        found = parts(state)
        change(found[place % len(found)], way)
        before = repr(state)
        await asyncio.sleep(0)
        assert repr(state) == before  # what the parallel node has changed meanwhile is its own

    @graph.node
    async def join(state: Any, ctx: hf.Context) -> dict[str, Any] | None:
        world.see("join", ctx.iteration)(state)
        if ctx.iteration % 2:
            return None  # it has changed nothing, which is checked
        _, place, way = world.acts[ctx.iteration % len(world.acts)]
        found = parts(state)
        change(found[place % len(found)], way)
        return {}

    def again(state: Any) -> str:
        world.see("router")(state)
        return "step" if field(state, "n") < ROUNDS else "finish"

    @graph.node
    async def finish(state: Any, ctx: hf.Context) -> Any:
        world.see("finish", ctx.iteration)(state)
        for part in parts(state):
            change(part, 0)
        if world.fails:
            world.fails = False
            raise ValueError("the first time")
        return {"n": 0}

    graph.edge(START, "step").edge("step", "left").edge("step", "right").edge("left", "join").edge(
        "right", "join"
    )
    graph.branch("join", again, to=["step", "finish"]).edge("finish", END)
    return graph.compile(max_iterations=ROUNDS + 2)


async def told(call: Any) -> str:
    """Return how a run has ended."""
    try:
        return str((await call).status)
    except hf.HoldfastError as fault:
        return str(fault)


async def lived(kind: str, given: dict[str, Any], acts: list[Any]) -> Any:
    """Return what the nodes and the router of a run have seen, and what is stored of it and of its fork."""
    store, world = MemoryStore(clock=lambda: 1.0), World(acts)
    stored: list[Any] = []
    made = flow(kind, world)
    async with hf.Engine(store, durability="async", flows=[made]) as engine:
        await told(engine.run(made, given, run_id="run"))
        for _ in range(2):  # the run goes back to its first result, and from there on again
            if engine.reader.get("run").status == "failed":
                ended = await told(engine.resume("run", after="step", validate=world.see("validate")))
                stored.append(ended)
        kinds = ("NodeCompleted", "RunCreated")
        seq = [row.seq for row in store.events("run", kinds=kinds)][:2][-1]
        fork = await engine.fork("run", run_id="fork", checkpoint=seq, edit=lambda state: None, repeat="run")
        stored.append(await told(engine.resume(fork)))
        if world.later:
            await asyncio.wait(world.later)
    for run_id in ("run", "fork"):
        stored += [(row.kind, row.node, open_row(row, store.blobs).event) for row in store.events(run_id)]
    return world.seen, stored


@contextmanager
def always_copying() -> Iterator[None]:
    """Let engines copy the whole state for every call."""
    before, Inputs.hands_on = Inputs.hands_on, False
    try:
        yield
    finally:
        Inputs.hands_on = before


@pytest.fixture
def from_one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let values be handed on from the first call and the first member on, so that small states show what large ones would."""
    monkeypatch.setattr(inputs, "LARGE", 1)
    monkeypatch.setattr(inputs, "_COPIES", 0)
    monkeypatch.setattr(inputs, "_REPLACED_MAX", 1)
    monkeypatch.setattr(inputs, "MEMBERS_MAX", 4)
    monkeypatch.setattr(journal, "_LARGE_EVENT", 0)


WORDS = st.sampled_from(["red", "blue", "", "2026-01-01"])
ROWS = st.lists(st.fixed_dictionaries({"name": WORDS, "tags": st.lists(WORDS, max_size=2)}), max_size=9)
TABLES = st.dictionaries(WORDS, st.one_of(WORDS, st.lists(WORDS, max_size=2), st.dictionaries(WORDS, WORDS, max_size=2)),
                         max_size=6)  # fmt: skip
LOGS = st.lists(
    st.fixed_dictionaries({"text": WORDS, "of": st.lists(st.integers(0, 3), max_size=2)}), max_size=6
)
STATES = st.fixed_dictionaries({"rows": ROWS, "table": TABLES, "log": LOGS, "n": st.just(0)})
DEEDS = st.sampled_from(
    [
        "change",
        "keep",
        "replace",
        "change kept",
        "task",
        "thread",
        "fail",
        "whole",
        "grow",
        "enter",
        "set",
        "nothing",
    ]
)
ACTS = st.lists(st.tuples(DEEDS, st.integers(0, 40), st.integers(0, 11)), min_size=1, max_size=8)


def is_same_as_with_copies(kind: str, given: dict[str, Any], acts: list[Any]) -> bool:
    handed = asyncio.run(lived(kind, given, acts))
    with always_copying():
        copied = asyncio.run(lived(kind, given, acts))
    return bool(handed == copied)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("from_one_member")
def test_every_call_sees_and_every_row_has_what_an_engine_that_copies_would_show(kind: str) -> None:
    quick = settings().max_examples < settings.get_profile("holdfast").max_examples

    @settings(max_examples=8 if quick else 400, suppress_health_check=list(HealthCheck))
    @given(given=STATES, acts=ACTS)
    def check(given: dict[str, Any], acts: list[Any]) -> None:
        assert is_same_as_with_copies(kind, given, acts)

    check()


# --- planted bugs -----------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def an_untouched_value_is_shared_between_parallel_nodes(patch: Patch) -> None:
    patch.setattr(proofs._Level, "is_unshared", lambda level: True)


def what_was_kept_is_handed_on(patch: Patch) -> None:
    patch.setattr(proofs, "_containers_in", lambda values, real=proofs._containers_in: real(values)[:1])


def the_proof_is_skipped_after_a_failed_attempt(patch: Patch) -> None:
    failed: list[bool] = []
    fail, holds = Runner._failed, Proof.holds
    patch.setattr(Runner, "_failed", lambda self, *given: [failed.append(True), fail(self, *given)][1])
    patch.setattr(Proof, "holds", lambda proof: bool(failed) or holds(proof))


def a_grown_list_loses_its_first_change(patch: Patch) -> None:
    update = inputs._Kept._update

    def lose(kept: Any, plain: Any) -> None:
        if isinstance(plain, list) and len(plain) > len(kept._members) > 1:
            kept._typed[0] = kept._typed[-1]
        update(kept, plain)

    patch.setattr(inputs._Kept, "_update", lose)


def an_entry_that_was_replaced_keeps_its_value(patch: Patch) -> None:
    differences = inputs._Kept.differences
    patch.setattr(inputs._Kept, "differences", lambda *given: None if differences(*given) is None else [])


def a_change_in_place_is_overlooked_in_a_state_that_is_returned(patch: Patch) -> None:
    patch.setattr(Proof, "is_unchanged", lambda proof: True)


def a_router_sees_a_later_value(patch: Patch) -> None:
    routing: list[bool] = []
    route, holds = outcomes.route, Proof.holds

    def watched(*given: Any, **named: Any) -> Any:
        routing.append(True)
        try:
            return route(*given, **named)
        finally:
            routing.pop()

    patch.setattr(outcomes, "route", watched)
    patch.setattr(Proof, "holds", lambda proof: bool(routing) or holds(proof))


def a_member_of_another_type_is_overlooked(patch: Patch) -> None:
    patch.setattr(proofs, "same_objects", lambda one, other: [*one] == [*other])


def has_same_values(level: Any) -> bool:
    return proofs.same_objects(tuple(gc.get_referents(*level._dicts)), level.in_dicts)


def a_renamed_key_is_overlooked(patch: Patch) -> None:
    patch.setattr(proofs._Level, "is_unchanged", has_same_values)


def the_order_of_keys_is_overlooked(patch: Patch) -> None:
    def is_unchanged(level: Any) -> bool:
        keys = sorted(key for part in level._dicts for key in part)
        return has_same_values(level) and keys == sorted(level._keys)

    patch.setattr(proofs._Level, "is_unchanged", is_unchanged)


BUGS = [
    an_untouched_value_is_shared_between_parallel_nodes,
    what_was_kept_is_handed_on,
    the_proof_is_skipped_after_a_failed_attempt,
    a_grown_list_loses_its_first_change,
    an_entry_that_was_replaced_keeps_its_value,
    a_change_in_place_is_overlooked_in_a_state_that_is_returned,
    a_router_sees_a_later_value,
    a_member_of_another_type_is_overlooked,
    a_renamed_key_is_overlooked,
    the_order_of_keys_is_overlooked,
]


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
@pytest.mark.usefixtures("from_one_member")
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    search = settings(
        max_examples=300, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    cases = st.tuples(st.sampled_from(["TypedDict", "dict"]), STATES, ACTS)
    assert find(cases, lambda case: not _is_same(case), settings=search, random=random.Random(7))


def _is_same(case: Any) -> bool:
    try:
        return is_same_as_with_copies(*case)
    except AssertionError:  # a node has seen what a parallel one did
        return False


# --- single cases -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Text:
    text: str

    @functools.cached_property
    def words(self) -> list[str]:
        return self.text.split()


class StructText(msgspec.Struct, frozen=True, dict=True):
    text: str

    @functools.cached_property
    def words(self) -> list[str]:
        return self.text.split()


@pytest.mark.parametrize("kind", [Text, StructText])
def test_a_value_that_an_earlier_node_let_a_frozen_object_keep_is_not_seen(kind: type) -> None:
    values = {"rows": [{"text": f"row {number}"} for number in range(inputs.LARGE)]}
    given = Inputs(StateType.of(dataclasses.make_dataclass("State", [("rows", list[kind])])))  # type: ignore[valid-type]
    for _ in range(4):
        row = given.load(values).rows[0]
        assert row.words == ["row", "0"]
        row.words.append("more")
        del row


def test_keys_that_change_places_are_noticed() -> None:
    row = {"a": None, "b": None, "c": ["d"]}
    proof = Proof([row])
    assert proof.holds()
    row["a"] = row.pop("a")
    row["c"] = row.pop("c")
    assert list(row.values()) == [None, None, ["d"]]
    assert not proof.holds()
    assert not proof.is_unchanged()


@dataclasses.dataclass
class Table:
    entries: Annotated[dict[str, list[int]], merge]


def table(count: int) -> dict[str, Any]:
    return {"entries": {f"k{number}": [number] for number in range(count)}}


def handed_on(given: Inputs, values: dict[str, Any], key: str) -> int:
    """Return which object a call gets under a key."""
    return id(given.load(values).entries[key])


def test_an_entry_that_is_replaced_leaves_the_others_handed_on() -> None:
    given, values = Inputs(StateType.of(Table)), table(2 * proofs.MEMBERS_MAX)
    for _ in range(3):
        first, last = handed_on(given, values, "k1"), handed_on(given, values, "k900")
    for number in range(5):
        values = {"entries": values["entries"] | {"k3": [number], f"new{number}": [number]}}
        assert given.load(values) == Table(values["entries"])
        assert (first, last) == (handed_on(given, values, "k1"), handed_on(given, values, "k900"))


def test_a_value_is_handed_on_again_when_the_parallel_calls_have_ended() -> None:
    given, values = Inputs(StateType.of(Table)), table(inputs.LARGE)
    for _ in range(3):
        first = handed_on(given, values, "k1")
    parallel = [given.load(values) for _ in range(5)]
    assert len({id(state.entries["k1"]) for state in parallel}) == 5
    del parallel
    assert handed_on(given, values, "k1") == first


def test_a_value_of_which_a_part_is_kept_for_ever_is_handed_on_again_as_another_object() -> None:
    given, values = Inputs(StateType.of(Table)), table(inputs.LARGE)
    for _ in range(3):
        kept = given.load(values).entries["k1"]
    calls = [handed_on(given, values, "k1") for _ in range(30)]
    assert id(kept) not in calls
    assert calls[-1] == calls[-2]


def test_a_list_that_may_be_missing_is_handed_on() -> None:
    given = Inputs(
        StateType.of(dataclasses.make_dataclass("State", [("entries", list[list[int]] | None, None)]))
    )
    assert given.load({"entries": None}).entries is None
    values = {"entries": [[number] for number in range(inputs.LARGE)]}
    calls = [id(given.load(values).entries[0]) for _ in range(5)]
    assert calls[-1] == calls[-2]


def test_only_what_was_added_to_a_list_in_a_whole_state_is_encoded(monkeypatch: Patch) -> None:
    state = StateType.of(
        dataclasses.make_dataclass("State", [("log", Annotated[list[dict[str, Any]], append])])
    )
    given, values = Inputs(state), {"log": [{"n": number} for number in range(inputs.LARGE)]}
    for _ in range(3):
        given.load(values)
    whole = given.load(values)
    whole.log.append({"n": "new"})
    known = given.unchanged(whole, values)
    assert known == {"log": inputs.LARGE}
    with monkeypatch.context() as patch:
        patch.setattr(type(state.fields["log"]), "encode", None)
        assert state.changes(whole, values, node="a", known=known).append == {"log": [{"n": "new"}]}
    whole.log.append({"n": object()})
    with pytest.raises(CodecError, match=rf"log\[{inputs.LARGE + 1}\]"):
        state.changes(whole, values, node="a", known=known)
    whole.log[0]["n"] = "changed"
    assert given.unchanged(whole, values) == {}


def test_a_field_whose_value_is_set_as_another_attribute_is_noticed() -> None:
    row = Row("a", ["b"])
    proof = Proof([row])
    assert proof.holds()
    row.label = row.tags  # type: ignore[attr-defined]
    del row.tags
    assert not proof.holds()
    assert not proof.is_unchanged()


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_large_value_is_handed_on_to_the_caller_unless_the_last_node_has_kept_a_part_of_it(
    is_kept: bool,
) -> None:
    calls, kept = list[int](), list[Any]()

    @dataclasses.dataclass
    class Rows:
        rows: list[dict[str, int]]
        n: int = 0

    graph = Graph("count", Rows)

    @graph.node
    async def count(state: Rows) -> dict[str, int]:
        calls.append(id(state.rows[0]))
        if is_kept:
            kept.append(state.rows[0])
        return {"n": state.n + 1}

    graph.edge(START, "count").branch(
        "count", lambda state: "count" if state.n < 5 else END, to=["count", END]
    )
    given = Rows([{"number": number} for number in range(inputs.LARGE)])

    async def ran() -> Any:
        async with hf.Engine(MemoryStore()) as engine:
            return (await engine.run(graph.compile(max_iterations=9), given)).state

    state = asyncio.run(ran())
    assert state == Rows(given.rows, 5)
    assert (id(state.rows[0]) == calls[-1]) is not is_kept


def test_a_large_value_is_handed_on_after_a_resume_although_only_small_events_follow() -> None:
    calls: list[int] = []

    @dataclasses.dataclass
    class Rows:
        rows: list[dict[str, int]]
        n: int = 0

    graph = Graph("count", Rows)

    @graph.node
    async def count(state: Rows) -> dict[str, int]:
        calls.append(id(state.rows[0]))
        if len(calls) == 1:
            raise ValueError("the first time")
        earlier.append(
            Inputs(StateType.of(Rows)).load({"rows": [{"number": 1}], "n": 0})
        )  # takes the place of a freed copy
        return {"n": state.n + 1}

    earlier: list[Any] = []
    graph.edge(START, "count").branch(
        "count", lambda state: "count" if state.n < 6 else END, to=["count", END]
    )
    flow = graph.compile(max_iterations=9)

    async def ran() -> None:
        store = MemoryStore()
        async with hf.Engine(store, flows=[flow]) as engine:
            await told(engine.run(flow, Rows([{"number": n} for n in range(inputs.LARGE)]), run_id="run"))
        async with hf.Engine(store, flows=[flow]) as engine:
            assert (await engine.resume("run")).status == "completed"

    asyncio.run(ran())
    assert len(set(calls[-4:])) == 1
