"""Compare two flows: their fingerprints, their differences, and whether a run of one may continue with the other.

- Everything in a definition is part of its fingerprint. Order matters only where it has an effect: the targets of one source (the
  walk that finds loops follows them in order), and the nodes of a layered flow (the updates of a layer are merged in node order).
  Moving a function within a file changes nothing.
- Values that equal their defaults are left out, so that an option added in a later version does not change old fingerprints.
- Storing a definition and reading it back does not change its fingerprint: 60 and 60.0 count as the same number.
- Two definitions have the same fingerprint exactly if their difference is empty.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from holdfast.core.definition import END, START, Definition, Edge, NodeOptions
from holdfast.errors import did_you_mean

T = TypeVar("T", str, Edge)

_STRUCTURAL_OPTIONS = frozenset({"join", "each"})
_STRUCTURAL_SETTINGS = frozenset({"name", "schedule"})
_SETTINGS = ("name", "schedule", "max_iterations", "max_parallel", "state_version")


def fingerprint(definition: Definition) -> str:
    """Return the fingerprint of a flow: the sha256 of its definition, in hex."""
    said = {**msgspec.to_builtins(definition), "edges": _by_source(definition.edges)}
    if definition.schedule == "layered":
        said["order"] = list(definition.nodes)
    canonical = json.dumps(_plain(said), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return sha256(canonical.encode()).hexdigest()


def _is_structural(changed: OptionChanged) -> bool:
    """Return whether a changed option changes the structure of the flow and not only how the node is treated: whether it joins,
    whether it fans out, whether it is a function or a question.
    """
    if changed.option == "question":
        return (changed.old is None) != (changed.new is None)
    return changed.option in _STRUCTURAL_OPTIONS


class Changed(msgspec.Struct, frozen=True):
    """A changed setting of the flow, or a changed field of its state. `old` or `new` is None if that flow does not have the
    field.
    """

    what: str
    old: Any
    new: Any


class OptionChanged(msgspec.Struct, frozen=True):
    """A changed option of a node that both flows have."""

    node: str
    option: str
    old: Any
    new: Any


class BranchChanged(msgspec.Struct, frozen=True):
    """The declared targets of a branch that were added or removed."""

    source: str
    added: list[str]
    removed: list[str]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from an old definition to a new one. Renamed nodes are listed under their new names."""

    renamed: list[tuple[str, str]] = []
    nodes_added: list[str] = []
    nodes_removed: list[str] = []
    edges_added: list[Edge] = []
    edges_removed: list[Edge] = []
    branches: list[BranchChanged] = []
    reordered: list[str] = []
    """Lists of nodes, edges or targets whose order has changed, if their order has an effect."""
    options: list[OptionChanged] = []
    fields: list[Changed] = []
    settings: list[Changed] = []

    @property
    def empty(self) -> bool:
        return not any(getattr(self, field) for field in self.__struct_fields__)

    @property
    def only_options(self) -> bool:
        """True if only options changed and the shape of the flow is the same. Retries, timeouts, limits, state fields and the
        version, for example, are not part of the shape.
        """
        shape = (self.renamed, self.nodes_added, self.nodes_removed, self.edges_added, self.edges_removed,
                 self.branches, self.reordered)  # fmt: skip
        return not (
            any(shape)
            or any(_is_structural(changed) for changed in self.options)
            or any(changed.what in _STRUCTURAL_SETTINGS for changed in self.settings)
        )

    def lines(self) -> list[str]:
        """Return the difference as readable lines: `+` added, `-` removed, `~` changed."""
        return [*self._shape_lines(), *self._value_lines()]

    def words(self) -> Iterator[str]:
        """Describe how the shape has changed, in a few words each. Edges and order are described only if the nodes are the same:
        otherwise they changed with the nodes.
        """
        for names, change in ((self.nodes_removed, "no longer in the flow"), (self.nodes_added, "new")):
            if names:
                yield f"node{'s'[: len(names) > 1]} {' and '.join(names)} {'is' if len(names) == 1 else 'are'} {change}"
        if not self.nodes_removed and not self.nodes_added:
            told = {"-": "is no longer in the flow", "+": "is new", "~": "has changed"}
            yield from (
                f"{line[2:].replace(' -> ', ' to ')} {told[line[0]]}"
                for line in self._shape_lines()
                if not line.startswith("~ node")  # a renamed node is the same node
            )
        structural = [f"{one.option} of node {one.node}" for one in self.options if _is_structural(one)]
        settings = [f"its {one.what}" for one in self.settings if one.what in _STRUCTURAL_SETTINGS]
        yield from (f"{what} has changed" for what in (*structural, *settings))

    def _shape_lines(self) -> Iterator[str]:
        yield from (f'~ node "{old}" is now "{new}"' for old, new in self.renamed)
        yield from (f'- node "{name}"' for name in self.nodes_removed)
        yield from (f'+ node "{name}"' for name in self.nodes_added)
        yield from (f"- edge {edge.source} -> {edge.target}" for edge in self.edges_removed)
        yield from (f"+ edge {edge.source} -> {edge.target}" for edge in self.edges_added)
        for branch in self.branches:
            yield from (f"- branch {branch.source} -> {target}" for target in branch.removed)
            yield from (f"+ branch {branch.source} -> {target}" for target in branch.added)
        yield from (f"~ order of {what}" for what in self.reordered)

    def _value_lines(self) -> Iterator[str]:
        for option in self.options:
            yield f'~ node "{option.node}": {option.option} {_show(option.old)} -> {_show(option.new)}'
        for field in self.fields:
            if field.old is None:
                yield f'+ state field "{field.what}" ({field.new})'
            elif field.new is None:
                yield f'- state field "{field.what}" ({field.old})'
            else:
                yield f'~ state field "{field.what}": {field.old} -> {field.new}'
        for setting in self.settings:
            yield f"~ flow: {setting.what} {_show(setting.old)} -> {_show(setting.new)}"


def difference(old: Definition, new: Definition, *, rename: Mapping[str, str] = {}) -> Difference:
    """Return how `new` differs from `old`, after the nodes of `old` are renamed (`rename`: old name -> new name)."""
    rename = {before: after for before, after in rename.items() if before in old.nodes and before != after}
    was = _rename(old, rename)
    return Difference(
        renamed=list(rename.items()),
        nodes_added=[name for name in new.nodes if name not in was.nodes],
        nodes_removed=[name for name in was.nodes if name not in new.nodes],
        edges_added=_subtract(new.edges, was.edges),
        edges_removed=_subtract(was.edges, new.edges),
        branches=[*_branches_changed(was, new)],
        reordered=[*_find_reordered(was, new)],
        options=[*_options_changed(was, new)],
        fields=[
            Changed(field, was.state.get(field), new.state.get(field))
            for field in dict.fromkeys([*was.state, *new.state])
            if was.state.get(field) != new.state.get(field)
        ],
        settings=[
            Changed(setting, getattr(was, setting), getattr(new, setting))
            for setting in _SETTINGS
            if getattr(was, setting) != getattr(new, setting)
        ],
    )


# --- may a run continue with a changed flow? ---------------------------------------------------------


def compatible(
    old: Definition,
    new: Definition,
    *,
    completed: Collection[str],
    pending: Collection[str],
    rename: Mapping[str, str] = {},
) -> list[str]:
    """Return the reasons why a run of `old` cannot continue with `new`; an empty list means that it can.

    `completed` are the old names of the nodes that the run has completed; `pending` are those of the nodes that are started,
    waiting or due.
    """
    refusals = [*rename_refusals(old, new, rename)]
    if old.name != new.name:
        refusals.append(
            f"the run belongs to flow {old.name!r}, not to {new.name!r}; resume it with its own flow"
        )
    if old.schedule != new.schedule:
        refusals.append(
            f"the schedule was {old.schedule!r} and is {new.schedule!r} now; compile the flow with "
            f"schedule={old.schedule!r}, or fork the run from its first checkpoint"
        )
    gone = {name for name in (*completed, *pending) if rename.get(name, name) not in new.nodes}
    refusals += _gone_refusals(old, new, completed, pending, gone, rename)
    done = [rename.get(name, name) for name in completed if name not in gone]
    refusals += _upstream_refusals(old, new, done, rename)
    if not refusals:
        refusals += _overtaken_refusals(old, new, [rename.get(name, name) for name in pending], rename)
    refusals += _option_refusals(old, new, [name for name in pending if name not in gone], rename)
    return refusals


def rename_refusals(old: Definition, new: Definition, rename: Mapping[str, str]) -> Iterator[str]:
    """Return why the nodes of `old` cannot be renamed so (`rename`: old name -> new name) to be those of `new`."""
    taken: dict[str, str] = {name: name for name in old.nodes if name not in rename}
    for before, after in rename.items():
        pair = f"rename={{{before!r}: {after!r}}} (--rename {before}={after})"
        if before not in old.nodes:
            yield f"{pair}: the run's flow has no node {before!r}{did_you_mean(before, old.nodes) or '; remove it'}"
        elif after not in new.nodes:
            yield f"{pair}: this flow has no node {after!r}{did_you_mean(after, new.nodes) or '; name one that it has'}"
        elif after in taken:
            yield f"{pair}: node {taken[after]!r} of the run's flow is {after!r} already; choose another node"
        taken.setdefault(after, before)


def _gone_refusals(
    old: Definition,
    new: Definition,
    completed: Collection[str],
    pending: Collection[str],
    gone: Collection[str],
    rename: Mapping[str, str],
) -> Iterator[str]:
    came = [name for name in new.nodes if name not in old.nodes and name not in rename.values()]
    for name in old.nodes:
        if name not in gone or name in rename:  # `rename_refusals` reports a rename to an unknown node
            continue
        near = difflib.get_close_matches(name, came, n=1, cutoff=0.6) or (came if len(came) == 1 else ["…"])
        done = "completed" if name in completed and name not in pending else "has yet to finish"
        yield (
            f"node {name!r}, which the run {done}, is no longer in the flow; if it was renamed, "
            f"pass rename={{{name!r}: {near[0]!r}}} (--rename {name}={near[0]}), otherwise fork the run from before it, or "
            "resume with the old code"
        )


def _upstream_refusals(
    old: Definition, new: Definition, completed: Iterable[str], rename: Mapping[str, str]
) -> Iterator[str]:
    """Refuse new nodes that come before a completed node: the run is already past them and would never run them."""
    known = {rename.get(name, name) for name in old.nodes}
    leads_to = _find_reached(new, completed, backwards=True)
    for name in new.nodes:
        if name not in known and name in leads_to:
            reached = leads_to[name]
            fork = f"fork the run from before {reached!r}, or resume with the old code"
            if reached in _find_reached(new, [name], backwards=False) and name in _find_reached(
                new, [reached], backwards=False
            ):
                yield (
                    f"node {name!r} is new and in a loop with {reached!r}, which the run completed: it comes after "
                    f"{reached!r}, and through the loop also before it; {fork}"
                )
            else:
                yield (
                    f"node {name!r} is new and comes before {reached!r}, which the run completed; put it after that node, "
                    f"{fork}"
                )


def _overtaken_refusals(
    old: Definition, new: Definition, pending: Iterable[str], rename: Mapping[str, str]
) -> Iterator[str]:
    """Refuse new nodes that come before a node that the run has reached, and not also after it: they would never run."""
    known = {rename.get(name, name) for name in old.nodes}
    for reached in pending:
        before, behind = (
            _find_reached(new, [reached], backwards=True),
            _find_reached(new, [reached], backwards=False),
        )
        for name in new.nodes:
            if name not in known and name in before and name not in behind:
                yield (
                    f"node {name!r} is new and comes before {reached!r}, which the run has reached already, so it "
                    f"would not run; put it after that node, fork the run from before {reached!r}, or resume with "
                    "the old code"
                )


def _find_reached(definition: Definition, names: Iterable[str], *, backwards: bool) -> dict[str, str]:
    """Return the nodes that can be reached from `names` along the edges (against them if `backwards`), each with the name from
    which it was reached.
    """
    arrows = definition.arrows()
    steps = _by_source([Edge(arrow.target, arrow.source) for arrow in arrows] if backwards else arrows)
    found = {name: name for name in names}
    waiting = list(found)
    for name in waiting:  # the list grows during the loop
        for step in steps.get(name, ()):
            if step not in found:
                found[step] = found[name]
                waiting.append(step)
    return found


def _option_refusals(
    old: Definition, new: Definition, pending: Iterable[str], rename: Mapping[str, str]
) -> Iterator[str]:
    for name in pending:
        now = rename.get(name, name)
        was, is_now = old.nodes[name], new.nodes[now]
        for option, before, after in (
            ("join", was.join, is_now.join),
            ("each", was.each, is_now.each),
            ("question", was.question is not None, is_now.question is not None),
            ("calls", was.calls, is_now.calls),
        ):
            if before != after:
                yield (
                    f"node {now!r}, which the run has yet to finish, had {option}={_show(before)} and has {_show(after)} "
                    f"now; change it back until the node is done, fork the run from before it, or resume with the old code"
                )


# --- parts -------------------------------------------------------------------------------------------


def _rename(definition: Definition, rename: Mapping[str, str]) -> Definition:
    """Return the definition with its nodes renamed."""

    def now(name: str) -> str:
        return name if name in (START, END) else rename.get(name, name)

    return msgspec.structs.replace(
        definition,
        nodes={now(name): options for name, options in definition.nodes.items()},
        edges=[Edge(now(edge.source), now(edge.target)) for edge in definition.edges],
        branches={
            now(source): [now(target) for target in targets]
            for source, targets in definition.branches.items()
        },
    )


def _branches_changed(old: Definition, new: Definition) -> Iterator[BranchChanged]:
    for source in dict.fromkeys([*old.branches, *new.branches]):
        before, after = old.branches.get(source, []), new.branches.get(source, [])
        added, removed = _subtract(after, before), _subtract(before, after)
        if added or removed:
            yield BranchChanged(source, added, removed)


def _find_reordered(old: Definition, new: Definition) -> Iterator[str]:
    if new.schedule == old.schedule == "layered" and _is_reordered(list(old.nodes), list(new.nodes)):
        yield "nodes"
    for kind, before, after in (
        ("edges", _by_source(old.edges), _by_source(new.edges)),
        ("branch targets", old.branches, new.branches),
    ):
        yield from (
            f"{kind} from {source}"
            for source in before
            if _is_reordered(before[source], after.get(source, []))
        )


def _is_reordered(old: list[str], new: list[str]) -> bool:
    """Return whether the members that both lists have are in another order."""
    before, after = frozenset(old), frozenset(new)
    return [name for name in old if name in after] != [name for name in new if name in before]


def _options_changed(old: Definition, new: Definition) -> Iterator[OptionChanged]:
    for name, options in old.nodes.items():
        if name in new.nodes and options != new.nodes[name]:
            for option in NodeOptions.__struct_fields__:
                before = _plain(getattr(options, option))
                after = _plain(getattr(new.nodes[name], option))
                if before != after:
                    yield OptionChanged(name, option, before, after)


def _subtract(those: list[T], known: list[T]) -> list[T]:
    """Return the members of the first list that are not in the second."""
    others = frozenset(known)
    return [one for one in those if one not in others]


def _by_source(arrows: Iterable[Edge]) -> dict[str, list[str]]:
    targets: dict[str, list[str]] = {}
    for arrow in arrows:
        targets.setdefault(arrow.source, []).append(arrow.target)
    return targets


def _plain(value: Any) -> Any:
    """Return a value as it is after being stored as JSON and read back: 60.0 becomes 60, and an infinite number or NaN becomes
    None.
    """
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return None if not math.isfinite(value) else int(value) if value.is_integer() else value
    return value


def _show(value: Any) -> str:
    """Return a value as it is printed in a line: text without quotes, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
