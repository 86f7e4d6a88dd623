"""Asks policies and verification about visits, and records what they decide. Only this module calls them.

- Before a visit (`ask_policies`): all policies that apply are asked, and the strictest verdict counts. The decision is saved
  before the node is called, whatever the durability.
- After a node has returned (`complete`): its result is verified, then the policies are asked. If it is accepted, verdicts and
  completion are one append. If not, what it returned is kept (`NodeReturned`), because its effect has happened: from then on,
  that is judged again, and the node is not called again. The one exception is a failed verification of an idempotent node whose
  retry names it.
- A rule that raises, or returns something else than a verdict, counts as a denial (`PolicyError`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import events
from holdfast.core.codec import plain_problem
from holdfast.core.events import Changes, Checked, Decision, Failure
from holdfast.core.fold.judged import denial
from holdfast.core.graph import Node
from holdfast.core.rules import Asked, Policy, RuleFacts, Verdict, Verifier
from holdfast.core.run_state import NodeState, RunState, visit_of
from holdfast.errors import HoldfastError, PolicyError, StateError, VerificationFailed, end_sentence
from holdfast.runtime import failures, outcomes
from holdfast.runtime.journal import Journal

APPROVE = "approve"
GATE = [APPROVE, "reject"]
UNASKED = Decision(APPROVE, "allow", "its function returned None, so there is no question")
"""The decision that lets a visit begin whose question was not asked."""
_STRICTEST: tuple[events.Verdict, ...] = ("deny", "ask", "allow")


# --- what rules are asked about ------------------------------------------------------------------------


def facts_of(node: Node, state: RunState, now: float) -> RuleFacts:
    """Return what the references and rules of a node may read before it is called."""
    error = _error_of(node, state) if node.wiring is not None and node.wiring.catches else None
    return RuleFacts(values=state.values, now=now, error=error)


def _error_of(node: Node, state: RunState) -> Failure | None:
    """Return the failure that led to a node: of the first source whose failure an edge to this node has taken."""
    assert node.wiring is not None
    for source in node.wiring.catches:
        ended = state.nodes.get(source)
        if ended is not None and ended.routes is not None and node.name in ended.routes:
            for warned in reversed(state.warnings):
                if warned.node == source:
                    return warned.failure
    return None


def plain_input(node: Node, state: RunState, item: int | None, now: float) -> Any:
    """Return what the function of a node gets, as plain data: an item, what the plan refers to, or the state."""
    visit = state.nodes[node.name]
    if item is not None and visit.items is not None:
        return visit.items.values[item]
    return node.wiring.resolve(facts_of(node, state, now)) if node.wiring is not None else visit.input or {}


def _given(node: Node, state: RunState, facts: RuleFacts) -> Any:
    """Return the input of a node as rules see it: the resolved input in a plan, the state for a graph in code."""
    if node.wiring is not None:
        return node.wiring.resolve(facts)
    visit = state.nodes.get(node.name)
    return visit.input if visit is not None and visit.input else state.values


def _asked(node: Node, state: RunState, iteration: int, given: Any, output: Any = None) -> Asked:
    values = state.values if node.wiring is not None else {}
    return Asked(
        run_id=state.run_id,
        node=node.name,
        iteration=iteration,
        input=given,
        output=output,
        capability=node.wiring.capability if node.wiring is not None else "",
        title=node.wiring.title if node.wiring is not None else "",
        goal=values.get("goal"),
        context=values.get("context"),
        policy=values.get("policy"),
        usd=state.usd + state.children_usd,
        tokens=state.tokens + state.children_tokens,
        active_s=state.active_s,
    )


# --- before a visit ------------------------------------------------------------------------------------


def ask_policies(journal: Journal, name: str, iteration: int, execution: int) -> events.PolicyDecided | None:
    """Ask the policies whether a visit may begin, and record their decision. Returns it if a person or an agent must be asked.
    The `approve=` of a node counts as a policy that always asks.
    """
    node, state = journal.flow.nodes[name], journal.state
    header: dict[str, Any] = {"node": name, "iteration": iteration, "execution": execution}
    facts = facts_of(node, state, journal.at)
    decisions: list[Decision] = []
    failure: Failure | None = None
    try:
        given = _given(node, state, facts)
        facts = msgspec.structs.replace(facts, input=given)
        decisions = _decide(node.pre, _asked(node, state, iteration, given), facts)
        if node.options.approve is not None:
            question = question_of(journal, node)
            decisions.append(UNASKED if question is None else Decision(APPROVE, "ask", question))
    except Exception as raised:  # noqa: BLE001 - a policy is user code, and what the input refers to may be missing
        failure = journal.faults.describe(name, raised)
    verdict = "deny" if failure is not None else _strictest(decisions)
    decided = events.PolicyDecided(**header, verdict=verdict, decisions=decisions, failure=failure)
    journal.record(decided)
    return decided if verdict == "ask" else None


def question_of(journal: Journal, node: Node) -> str | None:
    """Return the text of the question that comes before a visit: of a question node, or of `approve`. None if the function that
    makes the text returns None: then there is no question, and the node begins.
    """
    asked = node.options.question
    text, says = (
        (node.options.approve or "", node.asks)
        if asked is None
        else (asked.text, None if asked.text else node.fn)
    )
    if says is None:
        return text
    said = says(journal.load(journal.state.values))
    return None if said is None else str(said)


def questions_in(decisions: Iterable[Decision]) -> str:
    """Return the text of the question that policies ask: their questions, one after the other."""
    asked = [one.reason or f"Policy {one.policy!r} asks." for one in decisions if one.verdict == "ask"]
    return " ".join(dict.fromkeys(asked))


def _decide(policies: Iterable[Policy], asked: Asked, facts: RuleFacts) -> list[Decision]:
    """Ask all policies. Raises `PolicyError` if one of them cannot decide."""
    return [_ask_one(policy, asked, facts) for policy in policies]


def _ask_one(policy: Policy, asked: Asked, facts: RuleFacts) -> Decision:
    try:
        verdict = policy.judge(asked.copy()) if policy.rule is None else policy.rule(facts)
    except HoldfastError as fault:  # of a rule: its message has no data of the run
        raise PolicyError(f"policy {policy.id!r} cannot decide about {asked.node!r}: {fault}") from fault
    except Exception as fault:
        told = f"policy {policy.id!r} raised {type(fault).__name__} when it was asked about {asked.node!r}"
        raise PolicyError(
            f"{told}, which counts as a denial. Correct the policy and resume the run."
        ) from fault
    if not isinstance(verdict, Verdict):
        raise PolicyError(
            f"policy {policy.id!r} returned {type(verdict).__name__} when it was asked about {asked.node!r}, which counts as a "
            "denial. Return plan.allow(), plan.ask(…) or plan.deny(…), and resume the run."
        )
    problem = _verdict_problem(verdict)
    if problem:
        raise PolicyError(
            f"policy {policy.id!r} returned a verdict about {asked.node!r} that cannot be recorded, which counts as a denial: "
            f"{end_sentence(problem)} Correct the policy and resume the run."
        )
    return Decision(policy.id, verdict.verdict, verdict.reason, verdict.reads)


def _verdict_problem(verdict: Any) -> str:
    """Return why a verdict cannot be recorded, without its data; empty if it can."""
    if verdict.verdict not in _STRICTEST:
        return "its verdict is none of allow, ask and deny"
    if not isinstance(verdict.reason, str):
        return f"its reason is of type {type(verdict.reason).__name__}, not str"
    if not isinstance(verdict.reads, dict):
        return f"its reads are of type {type(verdict.reads).__name__}, not dict"
    found = plain_problem({"reason": verdict.reason, "reads": verdict.reads}, "")
    return f"{found[0].lstrip('.')}: {found[1]}" if found else ""


def _strictest(decisions: Iterable[Decision]) -> events.Verdict:
    verdicts = {one.verdict for one in decisions}
    return next((verdict for verdict in _STRICTEST if verdict in verdicts), "allow")


# --- after a node has returned -------------------------------------------------------------------------


def complete(journal: Journal, name: str, returned: Any, artifacts: dict[str, Any]) -> list[events.Event]:
    """Return the events for a node of a plan that has returned, or for a node whose result is judged and that has made these
    changes. Raises `StateError` if its result does not fit.
    """
    flow, state, node = journal.flow, journal.state, journal.flow.nodes[name]
    if node.wiring is None:
        return _judge(journal, node, returned, artifacts)
    # A node in a process of its own has encoded its output there.
    output = returned.merge["outputs"][name] if type(returned) is Changes else node.wiring.encode(returned)
    if not (node.checks or node.post):
        return outcomes.complete_ruled(flow, state, journal.faults, name, output, journal.at, artifacts)
    return _judge(journal, node, output, artifacts)


def finish(journal: Journal, name: str) -> None:
    """Judge again what a node has returned, or accept it because an answer did, and record what follows."""
    node, visit = journal.flow.nodes[name], journal.state.nodes[name]
    returned = visit.returned
    assert returned is not None
    journal.record(events.NodeStarted(**visit_of(name, visit), took=0, woken=True))
    result = returned.value
    if node.wiring is None:
        result = msgspec.convert(result, Changes)
    try:
        produced = (
            _accept(journal, node, result, returned.artifacts)
            if returned.accepted
            else _judge(journal, node, result, returned.artifacts, kept=True)
        )
    except StateError as raised:
        produced = [events.NodeFailed(**visit_of(name, visit), failure=journal.faults.describe(name, raised))]
    for event in produced:
        journal.record(event)


def _accept(journal: Journal, node: Node, result: Any, artifacts: dict[str, Any]) -> list[events.Event]:
    flow, state, faults, name = journal.flow, journal.state, journal.faults, node.name
    if node.wiring is not None:
        return outcomes.complete_ruled(flow, state, faults, name, result, journal.at, artifacts)
    return outcomes.complete_node(flow, state, journal.writers, faults, name, result, journal.load, artifacts)


def _judge(
    journal: Journal, node: Node, result: Any, artifacts: dict[str, Any], *, kept: bool = False
) -> list[events.Event]:
    """Verify a result, ask the policies about it, and return what follows. `kept`: the log has the result already."""
    state, visit = journal.state, journal.state.nodes[node.name]
    header = visit_of(node.name, visit)
    facts = facts_of(node, state, journal.at)
    output = result if node.wiring is not None else _update(result)
    produced: list[events.Event] = []
    value = result if node.wiring is not None else msgspec.to_builtins(result)
    returned: list[events.Event] = (
        [events.NodeReturned(**header, value=value, artifacts=artifacts)] if not kept else []
    )
    try:
        given = _given(node, state, facts)
        facts = msgspec.structs.replace(facts, input=given, output=output)
        asked = _asked(node, state, visit.iteration, given, output)
        if node.checks:
            checks = _verify(node.checks, asked, facts)
            produced.append(events.OutputVerified(**header, ok=all(one.ok for one in checks), checks=checks))
            if not all(one.ok for one in checks):
                return [*produced, *returned, _unverified(journal, node, visit, checks)]
        if not node.post:
            return [*produced, *_accept(journal, node, result, artifacts)]
        decisions = _decide(node.post, asked, facts)
    except PolicyError as fault:
        failure = journal.faults.describe(node.name, fault)
        return [*produced, *returned, events.NodeFailed(**header, failure=failure)]
    verdict = _strictest(decisions)
    produced.append(events.PolicyDecided(**header, stage="post", verdict=verdict, decisions=decisions))
    if verdict == "allow":
        return [*produced, *_accept(journal, node, result, artifacts)]
    if verdict == "deny":
        return [*produced, *returned, events.NodeFailed(**header, failure=denial(decisions))]
    return [*produced, *returned, _ask_about_result(header, visit, decisions, value, state.seq)]


def _ask_about_result(
    header: dict[str, Any], visit: NodeState, decisions: list[Decision], value: Any, seq: int
) -> events.QuestionAsked:
    """Return the question whether a result is used. If it is asked again, its key is another one, so that a late answer to the
    earlier question does not count.
    """
    place = "{node}.{iteration}.{execution}.result".format(**header)
    return events.QuestionAsked(
        **header,
        key=place if visit.returned is None else f"{place}#{seq}",
        text=questions_in(decisions),
        options=GATE,
        approving=GATE[:1],
        about="result",
        partial={"returned": value},
    )


def _update(changes: Changes) -> dict[str, Any]:
    """Return the changes of a node of a graph in code as a policy sees them: field -> what the node gives for it."""
    return {**changes.set, **changes.append, **changes.merge, **changes.add, **changes.reduce}


def _verify(checks: Iterable[Verifier], asked: Asked, facts: RuleFacts) -> list[Checked]:
    """Return what each rule of a verification finds. Raises `PolicyError` if one of them cannot decide."""
    found = []
    for check in checks:
        try:
            one = check.check(asked, facts)
        except HoldfastError as fault:
            raise PolicyError(f"verifier {check.id!r} cannot judge {asked.node!r}: {fault}") from fault
        except Exception as fault:
            told = f"verifier {check.id!r} raised {type(fault).__name__} for the output of {asked.node!r}"
            raise PolicyError(
                f"{told}, which is not used. Correct the verifier and resume the run."
            ) from fault
        found.append(one)
    return found


def _unverified(journal: Journal, node: Node, visit: NodeState, checks: list[Checked]) -> events.NodeFailed:
    """Return the failure of a verification. Only an idempotent node whose retry names it is called again."""
    failed = "; ".join(
        f"{one.id!r}" + (f": {one.reason}" if one.reason else "") for one in checks if not one.ok
    )
    error = VerificationFailed(
        f"{end_sentence(f'the output of {node.name!r} did not pass {failed}')} It is kept, and not used."
    )
    now, luck = journal.at, journal.services.luck
    if node.options.idempotent:
        judged = outcomes.fail_node(node, visit, error, now=now, luck=luck, timed_out=False)
        if judged.retry_at is not None:
            return judged
    journal.faults[node.name] = error
    return events.NodeFailed(**visit_of(node.name, visit), failure=failures.describe(error))
