"""Prints what resume, retry, skip, fork or cancel would do to one run (`--dry-run`), and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.cli import flow_files, screen, stores
from holdfast.cli.exits import Exit, code_named
from holdfast.cli.suggestions import command_line, say_remedies
from holdfast.core.consequences import PreviewNode
from holdfast.core.run_state import VISIT_DONE
from holdfast.errors import HoldfastError
from holdfast.reading import text
from holdfast.reading.diagnosis import asks
from holdfast.reading.previews import Preview

_NAMES_MAX = 20
_WIDTH = 14


def look_ahead(
    verb: str,
    run: str,
    given: dict[str, Any],
    *,
    file: str | None,
    store: str | None,
    as_json: bool,
    run_base: str | None = None,
) -> int:
    """Print what a verb would do with these options. Returns the exit code: that of the refusal, if it would be refused."""
    commands = command_line(file=file, store=store, run_base=run_base)
    with stores.reading(store) as reader:
        flow = reader.store.run(run.partition("@")[0]).flow
        try:
            flows = flow_files.flows_for(file, flow)
        except HoldfastError:
            if file is not None:
                raise
            flows = []  # the preview says what cannot be said without the flow
        preview = stores.execute(
            reader.store,
            lambda engine: engine.preview(run, verb, commands=commands, **given),
            {"flows": [one for one in flows if one.name == flow]},
        )
    if as_json:
        screen.say_json(preview)
    else:
        _say(preview)
    return code_named(preview.error) if preview.error is not None else Exit.OK


def _say(preview: Preview) -> None:
    place = f"{preview.run_id}@{preview.at}" if preview.at is not None else preview.run_id
    screen.say((f"dry run  {preview.verb} {place}", "bold"), ("  nothing was changed", "dim"))
    for one in _risky(preview):
        where = f" in run {one.run}" if one.run is not None else ""
        _row("NOT IDEMPOTENT", f"{one.node} {_last_run(one)}{where}; {_what_then(preview, one)}", "yellow")
    _row("runs again", _names(preview.rerun))
    _row("asks first", _names(preview.asks))
    _row("skips", _names(preview.skips))
    _row("stops", _names(preview.stops))
    for left in preview.uncleaned:
        _row("no cleanup", text.will_not_clean_up(left), "yellow")
    for cancelled in preview.cancels[:_NAMES_MAX]:
        _row("cancels", f"the child run {cancelled.run_id} of flow {cancelled.flow!r}")
        for left in cancelled.uncleaned:
            _row("no cleanup", f"in {cancelled.run_id}: {text.will_not_clean_up(left)}", "yellow")
    if len(preview.cancels) > _NAMES_MAX:
        _row("cancels", f"{len(preview.cancels) - _NAMES_MAX} more child runs; --json lists them all")
    _row("keeps", _names(preview.kept))
    for question in preview.closes:
        _row("closes", asks(question))
    for missed in preview.missed[:_NAMES_MAX]:
        got = screen.one_line(" ".join(missed.words()[1:]), 200)
        _row("does not have", f"the {missed.what} {got}, which {preview.run_id} has received", "yellow")
    if len(preview.missed) > _NAMES_MAX:
        more = f"{len(preview.missed) - _NAMES_MAX} more signals and answers; --json lists them all"
        _row("does not have", more, "yellow")
    _say_family(preview)
    for child in preview.leaves[:_NAMES_MAX]:
        _row("leaves alone", f"the child run {child}, which goes on without this run")
    continues = preview.verb in ("resume", "retry", "fork") and preview.refused is None
    if continues and not (preview.rerun or preview.asks or preview.skips or preview.stops):
        _row("runs again", "no node that has begun before")
    for said in preview.unknown:
        _row("not known", said, "dim")
    if preview.refused is not None:
        _row("refused", preview.refused.replace("\n", "\n" + " " * (_WIDTH + 4)), "red")
        say_remedies(preview.remedies)
    elif preview.command is not None:
        screen.say(("  to do this: ", "dim"), (preview.command, "bold"))


def _say_family(preview: Preview) -> None:
    """Print which failed child runs are resumed too, and which are left alone."""
    for one in preview.family[:_NAMES_MAX]:
        if one.left is None:
            again = _names((*one.rerun, *one.asks)) or "no node that has begun before"
            _row("resumes", f"the child run {one.run_id}: {again}")
        else:
            _row("leaves alone", f"the child run {one.run_id}: {screen.one_line(one.left, 300)}", "yellow")
    if len(preview.family) > _NAMES_MAX:
        _row("resumes", f"{len(preview.family) - _NAMES_MAX} more runs of its family; --json lists them all")


def _risky(preview: Preview) -> list[PreviewNode]:
    """Return the nodes that are not idempotent and are not simply kept, each once."""
    listed = (*preview.confirm, *preview.rerun)
    return list({one.node: one for one in reversed(listed) if not one.idempotent}.values())[::-1]


def _what_then(preview: Preview, one: PreviewNode) -> str:
    if any(other.node == one.node for other in preview.asks):
        return "a question is asked before it runs again"
    if any(other.node == one.node for other in preview.skips):
        return "it is skipped, and does not run again"
    return "its effect would happen again" if one.status in VISIT_DONE else "it would run again"


def _row(head: str, fact: str, style: str = "") -> None:
    if fact:
        screen.say((f"  {head.ljust(_WIDTH)}  ", style or "dim"), fact)


def _names(nodes: Iterable[PreviewNode]) -> str:
    listed = [_name(one) for one in nodes]
    more = f" and {len(listed) - _NAMES_MAX} more; --json lists them all" if len(listed) > _NAMES_MAX else ""
    return ", ".join(listed[:_NAMES_MAX]) + more


def _name(one: PreviewNode) -> str:
    times = one.last - one.first + 1
    return f"{screen.one_line(one.node, 80)} ({times} visits)" if times > 1 else screen.one_line(one.node, 80)


def _last_run(one: PreviewNode) -> str:
    """Say how far the last visit got, and when."""
    when = f" at {text.when(one.at)}" if one.at else ""
    if one.status in VISIT_DONE:
        return f"{'was skipped' if one.status == 'skipped' else one.status}{when}"
    return f"failed{when}" if one.status == "failed" else f"began{when} and has not completed"
