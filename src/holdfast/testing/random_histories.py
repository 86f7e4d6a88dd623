"""Random histories for tests: `play` extends a `History` until its run is over, with faults and waits that luck draws."""

from __future__ import annotations

import random
from collections.abc import Iterator

from holdfast.core import commands, run_state
from holdfast.core.run_state import wait_key
from holdfast.errors import ChildFailed, Fatal
from holdfast.testing.builders import History
from holdfast.testing.flows import Sketch
from holdfast.testing.plan_sketches import PlanSketch


def play(
    history: History, sketch: Sketch, luck: random.Random, *, trouble: float = 0.0, inside: float = 0.0
) -> Iterator[History]:
    """Extend a history until its run is over, and yield it after every few events. The run is one of `sketch`, a random graph;
    `luck` chooses which node or item ends next.

    `trouble` is the probability that a fault happens instead: the process dies, a node fails and is retried, a node fails for
    good and the run is resumed, or an operator pauses the run and resumes it. `inside` is the probability of an event inside
    a node instead: the node records a step, a checkpoint, a cost or chunks, or waits for a time, a signal or an answer.
    """
    while True:
        for command in history.commands():
            later = isinstance(command, (commands.WakeAt, commands.DueAt))
            if later and luck.random() < 0.5 and ([*_bodies(history)] or _awaited(history)):
                yield _extend(history, sketch, luck, trouble, inside)
            else:
                yield history.perform(command)
        if history.state.status == "completed":
            return
        if history.state.status in ("failed", "paused"):
            failure = history.state.failure
            yield history.taken_up(force=failure is not None and failure.kind == "fatal")
        elif not history.commands():
            yield _extend(history, sketch, luck, trouble, inside)


def _extend(history: History, sketch: Sketch, luck: random.Random, trouble: float, inside: float) -> History:
    """Add one random happening to the history: the end of a node, a fault, an event inside a node, or an answer or a signal
    that the run waits for.
    """
    bodies = [*_bodies(history)]
    if not bodies or (_awaited(history) and luck.random() < 0.3):
        return _answer_or_signal(history, sketch, luck)
    name, item = luck.choice(bodies)
    if luck.random() < trouble:
        return _disturb(history, name, item, luck)
    if luck.random() < inside:
        return _work(history, name, item, luck)
    if sketch.fails(name, history.state.nodes[name].iteration):
        return history.failed(name, ValueError("as drawn"))
    return _end(history, sketch, name, item)


def _awaited(history: History) -> list[str]:
    """Return the names of the awaited signals, the ids of the awaited children, and the keys of the questions that can still be
    answered.
    """
    waits = history.state.waits.values()
    signals = [*run_state.awaited_signals(waits), *(wait.child for wait in waits if wait.child is not None)]
    questions = history.state.questions.items()
    return [*signals, *(key for key, asked in questions if asked.until is None or asked.until > history.at)]


def _answer_or_signal(history: History, sketch: Sketch, luck: random.Random) -> History:
    """Add an answer or a signal that the run waits for. The first option of a question is chosen most often. A node that is
    skipped and has a branch needs an update, with which its router can choose.
    """
    word = luck.choice(_awaited(history))
    question = history.state.questions.get(word)
    if word in history.state.children:
        return history.child_ended(word, luck.choice(_ENDS), {"n": history.state.seq}, tokens=1)
    if question is None:
        return history.told(word, history.state.seq)
    if not question.options:
        return history.answered(word, luck.randrange(9))
    options = [option for option in question.options if option != "abort"]
    answer = luck.choice([*options[:1] * 3, *options])
    if answer == "skip" and question.about == "interrupt" and question.node in sketch.plans:
        iteration = history.state.nodes[question.node].iteration
        return history.answered(word, answer, update=sketch.update(question.node, iteration))
    return history.answered(word, answer)


def _work(history: History, name: str, item: int | None, luck: random.Random) -> History:
    """Add a random event inside a node: a step, a checkpoint, a cost, chunks or a wait."""
    number = luck.randrange(3)
    whats = (
        "step",
        "checkpoint",
        "cost",
        "stream",
        "sleep",
        "signal",
        "ask",
        "signal",
        "begin",
        "try",
        "raise",
        "child",
    )
    match luck.choice(whats):
        case "step":
            return history.stepped(name, f"step {number}", number, item=item)
        case "begin":
            return history.began_step(name, f"step {number}", item=item)
        case "try":
            retry_in = luck.choice((0.0, 5.0, 500.0))
            return history.step_failed(
                name, f"step {number}", ValueError(number), retry_in=retry_in, item=item
            )
        case "raise":
            return history.step_failed(name, f"step {number}", ValueError(number), item=item)
        case "checkpoint":
            return history.checkpointed(name, number, item=item)
        case "cost":
            return history.spent(name, 0.5, number)
        case "stream":
            return history.streamed(name, *range(number), item=item)
        case "child":
            return _call(history, name, item, luck)
        case waited:
            return _wait(history, name, item, luck, waited)


def _wait(history: History, name: str, item: int | None, luck: random.Random, what: str) -> History:
    """Let a node wait for a time, a signal or an answer, and park it; sometimes the signal arrives before it is parked."""
    slot = {"sleep": "sleep:1", "signal": "signal:go:1", "ask": "ask:Sure?"}[what]
    visit = history.state.nodes[name]
    key = wait_key(name, visit.iteration, visit.execution, item, slot)
    timeout = luck.choice((None, 5.0, 500.0))
    if slot not in history.kept(name, item) and key not in {**history.state.waits, **history.state.questions}:
        if what == "sleep":
            history.sleeping(name, timeout or 0.0, item=item)
        elif what == "signal":
            takes = 0 if history.state.aside and luck.random() < 0.5 else None
            wanted: dict[str, str] = luck.choice(({}, {"type": "integer"}))
            history.awaiting(name, "go", timeout, item=item, takes=takes, payload_schema=wanted)
        else:
            history.asking(name, "Sure?", "yes", "no", timeout=timeout, item=item)
        if luck.random() < 0.3:
            history.told("go", history.state.seq)
    if what == "signal" and history.kept(name, item).get(slot) and luck.random() < 0.3:
        history.set_aside(name, "go", item=item)
    if luck.random() < 0.2 and (key in history.state.waits or key in history.state.questions):
        return history.withdrawn(name, slot, item=item)
    if what == "signal" and luck.random() < 0.2 and history.kept(name, item).get(slot):
        return history.withdrawn(name, slot, returned="go", item=item)
    return history.parked(name, slot, item=item)


def _call(history: History, name: str, item: int | None, luck: random.Random) -> History:
    """Let a node start a child, wait for it and park, or fail because the child has failed. The child may end at any time."""
    state, visit, slot = history.state, history.state.nodes[name], "child:child:1"
    run = f"c.{wait_key(name, visit.iteration, visit.execution, item, 'child')}"
    if run not in state.children:
        history.calling(name, run, cancels=luck.random() < 0.5, item=item)
    if luck.random() < 0.3 and not state.children[run].is_final:
        history.child_ended(run, luck.choice(_ENDS), {"n": state.seq}, tokens=1)
    kept = history.kept(name, item)
    if slot not in kept and wait_key(name, visit.iteration, visit.execution, item, slot) not in state.waits:
        anew = state.children[run].in_doubt
        history.awaiting_child(name, run, luck.choice((None, 5.0)), anew=anew, item=item)
    end = kept[slot][0] if kept.get(slot) else {}
    if end.get("status") in ("failed", "cancelled"):
        error = ChildFailed(run, "child", None, "", "as drawn")
        return history.failed(name, error) if item is None else history.item_failed(name, item, error)
    return history.parked(name, slot, item=item)


_ENDS = ("completed", "completed", "failed", "cancelled")


def _end(history: History, sketch: Sketch, name: str, item: int | None) -> History:
    update = sketch.update(name, history.state.nodes[name].iteration, item)
    return history.completed(name, update) if item is None else history.item_completed(name, item, update)


def _bodies(history: History) -> Iterator[tuple[str, int | None]]:
    for name in history.running:
        items = history.state.nodes[name].items
        yield from [(name, None)] if items is None else [(name, item) for item in items.running]


def _disturb(history: History, name: str, item: int | None, luck: random.Random) -> History:
    error = ValueError("trouble")
    kind = luck.choice(("crash", "retry", "fail", "pause"))
    if kind == "crash":
        return history.taken_up()
    if kind == "pause":
        return history.paused() if not history.state.paused else history
    retry_in = luck.choice((0.0, 50.0)) if kind == "retry" else None
    return (
        history.failed(name, error, retry_in=retry_in)
        if item is None
        else history.item_failed(name, item, error, retry_in=retry_in)
    )


# --- plans -------------------------------------------------------------------------------------------------


def play_plan(
    history: History, sketch: PlanSketch, luck: random.Random, *, trouble: float = 0.0
) -> Iterator[History]:
    """Extend the history of a sketched plan until its run is over, and yield it after every few events. `luck` chooses which node
    ends next. An edge must take every failure of the plan (`draw_plan(handled=True)`). `trouble` is the probability that the
    process dies, an operator pauses the run, or an answer refuses.
    """
    while True:
        for command in history.commands():
            yield history.perform(command)
        if history.state.status == "completed":
            return
        if history.state.status in ("failed", "paused"):
            failure = history.state.failure
            yield history.taken_up(force=failure is not None and failure.kind == "fatal")
        elif not history.commands():
            yield _extend_plan(history, sketch, luck, trouble)


def _extend_plan(history: History, sketch: PlanSketch, luck: random.Random, trouble: float) -> History:
    """Add one random happening: the end of a node, an answer, or trouble."""
    if luck.random() < trouble and not history.state.paused:
        return history.taken_up() if luck.random() < 0.7 else history.paused()
    asked = [*history.state.questions.values()]
    if asked and (not history.running or luck.random() < 0.3):
        question = luck.choice(asked)
        answer = question.options[-1 if question.about != "interrupt" and luck.random() < trouble else 0]
        return history.answered(question.key, answer)
    if not history.running:
        return history.taken_up()
    return _end_of_plan_node(history, sketch, luck.choice(history.running))


def _end_of_plan_node(history: History, sketch: PlanSketch, name: str) -> History:
    node = next(node for node in sketch.nodes if node.name == name)
    attempt = history.state.nodes[name].attempt
    if node.ends in ("raises", "fatal"):
        return history.failed(name, ValueError("as drawn") if node.ends == "raises" else Fatal("as drawn"))
    if node.ends == "flaky" and attempt < 3:
        return history.failed(name, ValueError("not yet"), retry_in=1.0)
    outputs = history.state.values["outputs"]
    told = node.output([outputs[source]["n"] for source in sketch.inputs(name) if source in outputs])
    return history.completed(name, told | ({"try": min(2, attempt)} if node.ends == "later" else {}))
