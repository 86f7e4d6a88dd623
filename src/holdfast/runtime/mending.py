"""Mends families: a caller that is resumed or retried also resumes the child runs because of which it failed.

A child that is resumed by its caller does the same for its own children, so that one command reaches every generation. The
request to each child goes with the append that resumes its caller (`Journal.posts`): a crash leaves both, or neither, and a
command that is repeated finds a caller that has not failed any more.

- Which children are meant follows from the log of the caller: those for which a node failed that is tried again and, if the
  caller has failed, those whose failures its other nodes have not received yet. A child whose failure the caller has handled
  is left alone.
- The whole family is prepared first, in journals that are never saved, so that the command is refused before anything is
  recorded if a descendant needs a decision: `confirm` for a node that is not idempotent (`"RUN/node"`), `force` after a fatal
  failure. The engine that holds a descendant checks both again.
- A descendant that cannot be resumed in this way is left alone, and the preview says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.core.consequences import PreviewNode, foresee, survey
from holdfast.core.fold.children import find_blocking, has_come_while_parked
from holdfast.core.graph import Flow
from holdfast.core.run_state import RunState
from holdfast.core.situation import typed_file
from holdfast.errors import ResumeRefused, RunNotFound, SchemaTooNew, StoreCorrupt, end_sentence
from holdfast.reading import history, inbox, previews, text
from holdfast.reading.known_flows import find_flow
from holdfast.reading.previews import Mended, VerbCall
from holdfast.reading.views import held_by
from holdfast.runtime.journal import Journal
from holdfast.runtime.services import Services
from holdfast.storage.contract import RunRow

FROM_CALLER = "caller:"
"""What the id of a request begins with that a caller has left for its child."""


def is_from_caller(request: inbox.AnyRequest) -> bool:
    """Return whether the caller of a run has asked for this, because an operator has resumed or retried that caller."""
    return request.id.startswith(FROM_CALLER)


class Unconfirmed(ResumeRefused):
    """The verb would repeat nodes that are not idempotent, and the caller has not confirmed all of them."""

    def __init__(self, run_id: str, reason: str, nodes: list[str], *, asked: str = "resumed") -> None:
        super().__init__(run_id, reason, asked=asked)
        self.nodes = nodes


class FatalFailure(ResumeRefused):
    """The run `whose`, or a descendant of it, failed for good, and is resumed only with `force`. `cause` says why it failed."""

    def __init__(
        self, run_id: str, reason: str, *, whose: str = "", cause: str = "", asked: str = "resumed"
    ) -> None:
        super().__init__(run_id, reason, asked=asked)
        self.whose = whose or run_id
        self.cause = cause


class FamilyOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What the command on a caller says about its descendants."""

    confirm: Collection[str] = ()
    """The nodes that may run again although they are not idempotent. Those of a descendant are named `RUN/node`."""
    force: bool = False
    by: str | None = None
    reason: str | None = None
    expected: bool = False
    """True if the command was given for a preview: then each descendant is resumed only if that does what the preview said."""
    asked: str = "resumed"

    def for_child(self, run_id: str) -> list[str]:
        """Return what a child has to be given as `confirm`: its own nodes without the name of the run."""
        inside = [name.removeprefix(f"{run_id}/") for name in self.confirm if name.startswith(f"{run_id}/")]
        return inside + [name for name in of_family(self.confirm) if not name.startswith(f"{run_id}/")]


Prepare = Callable[[Services, Flow[Any], RunRow, FamilyOrders], Journal]
"""Prepares the resume of a child in a journal that is never saved."""


def of_family(confirm: Iterable[str]) -> list[str]:
    """Return the names in `confirm` that are nodes of descendants: neither a run nor a node has a slash in its name."""
    return [name for name in confirm if "/" in name]


def find(
    journal: Journal, names: Collection[str], orders: FamilyOrders, prepare: Prepare, *, unseen: bool = True
) -> tuple[Mended, ...]:
    """Return the children that keep these nodes from ending, and what becomes of them when the nodes are tried again: before
    that, because the log says then why they failed. `unseen`: see `find_blocking`. Raises `FatalFailure`.
    """
    state = journal.state
    found = find_blocking(state, names, unseen=unseen) if state.children else []
    looked_at = [_look_at(journal, run_id, orders, prepare) for run_id in found]
    return tuple(one for one in looked_at if one is not None)


def receive_ends(journal: Journal) -> None:
    """Record the ends of children that still wait in the inbox of a failed run: a child that has failed is resumed with the run
    then, and its old failure does not fail the run once more.
    """
    for request in map(inbox.read, journal.services.store.queues.waiting((journal.state.run_id,))):
        if isinstance(request, inbox.ChildEnd):
            journal.record_child_end(request)
            journal.taken.append(request.id)


def leave(journal: Journal, family: tuple[Mended, ...], orders: FamilyOrders) -> None:
    """Leave requests to resume for these children, with the next append."""
    journal.family = family
    for one in family:
        if one.preview is not None:
            journal.posts.append((one.run_id, inbox.stored_form(_request(journal.state, one, orders))))


def find_anew(state: RunState, family: Iterable[Mended]) -> dict[str, list[str]]:
    """Return the nodes whose attempts have unwound and that some of these children have failed since, each with those children:
    such an attempt would be given the failure when it is woken, so its visit is retried, and waits for the next ends.
    """
    found: dict[str, list[str]] = {}
    for one in family:
        if one.preview is not None and has_come_while_parked(state, one.run_id):
            found.setdefault(state.children[one.run_id].node, []).append(one.run_id)
    return found


def _request(state: RunState, member: Mended, orders: FamilyOrders) -> inbox.Resume:
    """Return the request to a child. Its id follows from its caller and from where the log of its caller ends."""
    assert member.preview is not None
    below = {member.run_id, *(one.run_id for one in member.preview.family)}
    meant = [name for name in of_family(orders.confirm) if name.partition("/")[0] in below]
    return inbox.Resume(
        id=f"{FROM_CALLER}{state.run_id}:{state.seq}:resume",
        force=orders.force,
        confirm=FamilyOrders(confirm=meant).for_child(member.run_id),
        by=orders.by,
        reason=orders.reason or f"its caller {state.run_id!r} was {orders.asked}",
        expects=member.preview.digest if orders.expected else None,
    )


def _look_at(journal: Journal, run_id: str, orders: FamilyOrders, prepare: Prepare) -> Mended | None:
    """Find out what becomes of a child because of which a run has failed; None if it has completed since."""
    store, caller = journal.services.store, journal.state.run_id
    flow = journal.state.children[run_id].flow
    try:
        row = store.run(run_id)
        if row.status == "completed":
            return None
        left = _why_left(journal, row)
        if left is None:
            return _prepare_child(journal, row, orders, prepare)
    except RunNotFound:
        left = "it was deleted"
    except (StoreCorrupt, SchemaTooNew) as fault:
        left = str(fault)
    except (FatalFailure, Unconfirmed):
        raise
    except ResumeRefused as refused:
        left = refused.reason
    return Mended(run_id=run_id, flow=flow, caller=caller, left=left)


def _why_left(journal: Journal, row: RunRow) -> str | None:
    """Say why a child is not asked to resume; None if it is."""
    if row.status == "cancelled":
        node = journal.state.children[row.run_id].node
        again = f"`holdfast retry {journal.state.run_id} {node} --fresh`"
        return f"it was cancelled; {again} starts another one in its place"
    if row.held:
        return f"{held_by(row)} holds it"
    if row.status != "failed":
        return f"it was resumed before, and is {row.status}"
    waiting = journal.services.store.queues.waiting((row.run_id,))
    return "it was asked to resume before" if any(one.verb in inbox.EXECUTING for one in waiting) else None


def _prepare_child(journal: Journal, row: RunRow, orders: FamilyOrders, prepare: Prepare) -> Mended:
    services = journal.services
    store = services.store
    head = history.load(store, row.run_id, row=row)
    flow = find_flow(store, services.families.flows, row) or history.stand_in(store, head)
    passed = msgspec.structs.replace(orders, confirm=orders.for_child(row.run_id))
    before = survey(head)
    try:
        ahead = prepare(services.unsaving(), flow, row, passed)
    except FatalFailure as fatal:
        top = journal.state
        told = f"the child run {fatal.whose} failed for good: {end_sentence(fatal.cause)}"
        way = f"If the cause is gone: `holdfast resume {top.run_id} {typed_file(top)} --force`"
        raise FatalFailure(
            top.run_id, f"{told} {way}", whose=fatal.whose, cause=fatal.cause, asked=orders.asked
        ) from fatal
    found = foresee(before, ahead.state, ahead.flow, ahead.at)
    call = VerbCall(run_id=row.run_id, verb="resume", options={"force": True} if orders.force else {})
    confirm = (*find_unsafe(found.rerun), *family_confirm(ahead.family))
    preview = previews.make(call, found, confirm=confirm, path=head.path, family=ahead.family)
    return Mended(run_id=row.run_id, flow=row.flow, caller=journal.state.run_id, preview=preview)


def find_unsafe(rerun: Iterable[PreviewNode]) -> tuple[PreviewNode, ...]:
    """Return the nodes that a run which its caller resumes repeats only if they are confirmed."""
    return tuple(one for one in rerun if not one.idempotent)


def family_confirm(family: Iterable[Mended]) -> Iterator[PreviewNode]:
    """Yield the nodes of descendants that have to be confirmed, named as in `confirm` of the command on their caller."""
    for one in family:
        for node in one.preview.confirm if one.preview is not None else ():
            named = node.node if "/" in node.node else f"{one.run_id}/{node.node}"
            yield msgspec.structs.replace(node, node=named)


def refuse_unconfirmed(
    run_id: str, family: Iterable[Mended], orders: FamilyOrders, own: Iterable[PreviewNode] = ()
) -> None:
    """Refuse to resume descendants that would repeat nodes which are not idempotent and not confirmed; `own` are such nodes of
    the run itself, if its caller resumes it. Raises `Unconfirmed`, with the names of all nodes that have to be confirmed.
    """
    needed = {one.node: one for one in (*own, *family_confirm(family))}
    if not orders.force and not needed.keys() <= set(orders.confirm):
        plural = len(needed) > 1
        listed = "\n".join(f"  {name} (failed at {text.when(one.at or 0.0)})" for name, one in needed.items())
        raise Unconfirmed(
            run_id,
            f"its family would repeat {f'{len(needed)} nodes' if plural else 'a node'} that {'are' if plural else 'is'} not "
            f"idempotent:\n{listed}\nTo run {'them' if plural else 'it'} again, add confirm={[*needed]} "
            f"({' '.join(f'--confirm {name}' for name in needed)}).",
            list(needed),
            asked=orders.asked,
        )


def refuse_needless(run_id: str, family: Iterable[Mended], orders: FamilyOrders) -> None:
    """Refuse a `confirm` of a node of a descendant that would not run again: it is probably a mistake. Raises
    `ResumeRefused`.
    """
    again = {one.node for one in family_confirm(family)}
    for name in of_family(orders.confirm):
        if name not in again:
            raise ResumeRefused(
                run_id,
                f"confirm names {name!r}, which would not run again in a child run of this run. Leave it out of confirm.",
                asked=orders.asked,
            )
