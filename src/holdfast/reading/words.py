"""Describes events in a few words, wherever events are shown to a person.

The words describe only the content of the event. The caller prints the run, the node and the time beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, assert_never

from holdfast.core.slots import parse
from holdfast.reading import text
from holdfast.reading.views import Cost, EventView

Body: TypeAlias = Mapping[str, Any]

_VALUE_WIDTH = 120
_TAIL_CHUNKS = 400
"""How many of the last chunks are searched for the last lines."""


def words(event: EventView) -> str | None:
    """Describe an event in a few words; None for kinds of events that are shown by their fields instead."""
    say = _WORDS[event.kind]
    return None if say is None else say(event.body) + _said(event)


def value(given: Any) -> str:
    """Return a value as JSON in one line, shortened if it is long."""
    return text.one_line(text.json_text(given, indent=None), _VALUE_WIDTH)


def cost(spent: Cost) -> str:
    """Return a cost as text, e.g. `$0.02, 120 tokens`; empty if nothing was spent."""
    parts = [f"${spent.usd:.4f}".rstrip("0").rstrip(".")] if spent.usd else []
    parts += [f"{text.count(spent.tokens, 'token')}"] if spent.tokens else []
    return ", ".join(parts)


def handled(*, is_caught: bool) -> str:
    """Return what became of a failure that did not fail the run, in words that follow `node NAME failed,`."""
    return "and an error edge takes the failure" if is_caught else "which is ignored (safe_to_fail)"


def lines(chunks: Iterable[Any], most: int) -> list[str]:
    """Return the last lines of streamed output. Text chunks are joined; every other chunk is a line of its own."""
    whole = "".join(
        chunk if isinstance(chunk, str) else f"\n{value(chunk)}\n"
        for chunk in list(chunks)[-_TAIL_CHUNKS:]
    )  # fmt: skip
    return [line for line in whole.splitlines() if line.strip()][-most:]


def waited_for(slot: str) -> str:
    """Describe what a node waits for in this slot: a signal, an answer, the end of a child run or a time."""
    awaited = parse(slot)
    if awaited is None:
        return "a time"
    match awaited.kind:
        case "signal":
            return f"the signal {awaited.name!r}"
        case "ask":
            return f"an answer to {awaited.key!r}"
        case "child":
            return f"the child run {awaited.name!r}"
        case "try":
            return f"the next try of the step {awaited.name}"
        case "sleep" | "step" | "raised" | "begun" | "checkpoint":
            return "a time"
        case unknown:
            assert_never(unknown)


def _guards(body: Body) -> str:
    if failure := body.get("failure"):
        return f"guards: {text.one_line(text.describe_fault(failure), 200)}"
    verdicts = ", ".join(
        f"{target} {'is' if taken else 'is not'} next" for target, taken in body.get("verdicts", {}).items()
    )
    reads = ", ".join(f"{path} = {value(read)}" for path, read in body.get("reads", {}).items())
    return f"guards: {verdicts}" + (f" ({reads})" if reads else "")


def _skips(body: Body) -> str:
    why = body.get("why", {})
    return "skips " + ", ".join(
        f"{name} (no way from {why[name]})" if name in why else name for name in body["nodes"]
    )


def _policies(body: Body) -> str:
    when = "before it begins" if body.get("stage", "pre") == "pre" else "on its result"
    said = "; ".join(
        f"{one['policy']} {_VERDICTS[one['verdict']]}" + (f": {one['reason']}" if one.get("reason") else "")
        for one in body.get("decisions", ())
    )
    if failure := body.get("failure"):
        said = text.one_line(text.describe_fault(failure), 200)
    return f"policies {when}: {body.get('verdict', 'allow')}" + (f" ({said})" if said else "")


_VERDICTS = {"allow": "allows", "ask": "asks", "deny": "denies"}
"""What a policy does, in words."""


def _verified(body: Body) -> str:
    failed = [one for one in body.get("checks", ()) if not one["ok"]]
    if body.get("ok", True):
        return f"verified by {', '.join(one['id'] for one in body.get('checks', ()))}"
    return "not verified: " + "; ".join(
        one["id"] + (f": {one['reason']}" if one.get("reason") else "") for one in failed
    )


def _started(body: Body) -> str:
    done = "continues with" if body.get("adopted") else "starts"
    return f"{done} the child run {body['run']} of flow {body['flow']!r}{_item(body)}"


def _ended(body: Body) -> str:
    failure = body.get("failure")
    why = f": {text.one_line(text.describe_fault(failure), 200)}" if failure else ""
    spent = cost(Cost(body.get("usd", 0.0), body.get("tokens", 0)))
    status = body["status"]
    return f"the child run {body['run']} {'was ' if status == 'cancelled' else ''}{status}{why}" + (
        f" ({spent})" if spent else ""
    )


def _said(event: EventView) -> str:
    by = f" by {event.by}" if event.by else ""
    sure = event.body.get("confidence")
    sure = f", confidence {sure:g}" if sure is not None else ""
    reason = f": {event.body['reason']}" if event.body.get("reason") else ""
    return text.one_line(by + sure + reason, 300)


def _until(body: Body) -> str:
    return f", until {text.when(body['until'])}" if body.get("until") is not None else ""


def _item(body: Body) -> str:
    return f" (item {body['item']})" if body.get("item") is not None else ""


def _step(body: Body) -> str:
    result = f" = {value(body['value'])}" if "value" in body else ""
    return f"step {text.one_line(body['step'])}{_item(body)} is kept{result}"


def _step_failed(body: Body) -> str:
    failure = body["failure"]
    raised = text.one_line(f"{failure['type']}: {failure['message']}", 200)
    step = f"step {text.one_line(body['step'])}{_item(body)}"
    if body.get("retry_at") is None:
        return f"{step} is kept, and raises {raised}"
    return f"{step} failed and may be tried again at {text.when(body['retry_at'])}: {raised}"


def _streamed(body: Body) -> str:
    chunks = body.get("chunks", [])
    last = lines(chunks, 1)
    tail = f", the last line: {text.last_of_line(last[0], 80)}" if last else ""
    return f"streamed {text.count(len(chunks), 'chunk')}{_item(body)}{tail}"


def _asked(body: Body) -> str:
    options = f" ({' / '.join(body['options'])})" if body.get("options") else ""
    return f"asks: {text.one_line(body['text'] + options, 300)}{_item(body)}{_until(body)}"


def _answered(body: Body) -> str:
    refused = " (a refusal)" if body.get("refused") else ""
    if stated := body.get("stated"):
        step = f"{text.one_line(stated['step'])}{_item(stated)}"
        return f"answered that the step {step} has happened, with the result {value(stated.get('result'))}"
    return f"answered {value(body.get('answer'))}{refused}"


def _waiting(body: Body) -> str:
    awaited = " or ".join(dict.fromkeys(waited_for(slot) for slot in body.get("on", [])))
    return f"suspended{_item(body)}: uses no memory while it waits for {text.one_line(awaited, 200)}"


def _awaits(body: Body) -> str:
    return f"waits for the signal {body['name']!r}{_item(body)}{_until(body)}"


def _signal(body: Body) -> str:
    payload = f" = {value(body['payload'])}" if "payload" in body else ""
    return f"received the signal {body['name']!r}{payload}"


def _withdrawn(body: Body) -> str:
    returned = f"; the signal {body['returned']!r} goes to the next wait" if body.get("returned") else ""
    return f"gave up its wait for {text.one_line(waited_for(body['slot']), 200)}{_item(body)}{returned}"


def _fired(body: Body) -> str:
    slot = parse(body.get("slot", ""))
    if slot is None:  # the question that a node asks before it begins
        return f"no answer came in time{_item(body)}"
    match slot.kind:
        case "sleep":
            return f"woke from its sleep{_item(body)}"
        case "signal":
            return f"the signal {slot.name!r} did not come in time{_item(body)}"
        case "child":
            return f"the child run {slot.name!r} did not end in time{_item(body)}"
        case "try":
            return f"tries the step {text.one_line(slot.name)} again{_item(body)}"
        case "ask" | "step" | "raised" | "begun" | "checkpoint":
            return f"no answer came in time{_item(body)}"
        case unknown:
            assert_never(unknown)


_WORDS: dict[str, Callable[[Body], str] | None] = {
    **dict.fromkeys(
        (
            "RunCreated", "RunForked", "RunClaimed", "RunResumed", "RunRewound", "RunPaused", "RunInterrupted",
            "RunCompleted", "RunFailed", "RunCancelled", "RequestRefused", "ResumeRefused", "StateEdited", "StateUpgraded",
            "FlowChanged", "NodeScheduled", "NodeStarted", "NodeCompleted", "NodeFailed", "NodeInterrupted", "NodeSkipped",
            "NodeRouted", "RoutingFailed", "ItemsListed", "ItemStarted", "ItemCompleted", "ItemFailed", "LayerCompleted",
        )
    ),
    "GuardEvaluated": _guards,
    "NodesSkipped": _skips,
    "PolicyDecided": _policies,
    "OutputVerified": _verified,
    "NodeReturned": lambda body: f"returned {value(body.get('value'))}, which is not used yet",
    "StepCompleted": _step,
    "StepStarted": lambda body: f"calls the step {text.one_line(body['step'])}{_item(body)}, which must not be called twice",
    "StepFailed": _step_failed,
    "NodeCheckpointed": lambda body: f"checkpoint {value(body.get('value'))}{_item(body)}",
    "NodeStreamed": _streamed,
    "CostIncurred": lambda body: (
        f"spent {cost(Cost(body.get('usd', 0.0), body.get('tokens', 0))) or 'nothing'}"
    ),
    "NodeWaiting": _waiting,
    "TimerSet": lambda body: f"sleeps{_item(body)}{_until(body).removeprefix(',')}",
    "TimerFired": _fired,
    "SignalAwaited": _awaits,
    "SignalReceived": _signal,
    "SignalSetAside": lambda body: f"sets the signal {body['name']!r} aside, which does not fit{_item(body)}",
    "WaitWithdrawn": _withdrawn,
    "ChildStarted": _started,
    "ChildAwaited": lambda body: f"waits for the child run {body['run']}{_item(body)}{_until(body)}",
    "ChildEnded": _ended,
    "QuestionAsked": _asked,
    "QuestionAnswered": _answered,
}  # fmt: skip
"""Kind of event -> the function that describes it; None if its fields are shown instead. Every kind has an entry."""
