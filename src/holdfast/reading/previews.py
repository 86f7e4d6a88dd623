"""`Preview`: what resume, retry, skip, fork or cancel would do to a run, made before anything is done.

The engine rehearses the verb (`runtime`) and passes the outcome on; this module makes a value of it, with a digest, the
command that does it, and, if it would be refused, the ways out. Nothing here decides what a verb does.

The digest covers the verb, its options and what it would do, but not the seq of the run: a run that merely moves on makes no
preview stale. So it does not cover `uncleaned` either, which changes whenever a visit begins to wait or wakes. It does not cover
what a caller decides after looking at the preview: `confirm` of a resume, `repeat`, `run_id` and `labels` of a fork, `by` and
`reason`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from holdfast.core.consequences import Consequences, PreviewNode
from holdfast.core.events import Uncleaned
from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.run_state import VISIT_DONE, Question
from holdfast.errors import HoldfastError, PreviewStale, ResumeRefused
from holdfast.reading import remedies as ways
from holdfast.reading import text
from holdfast.reading.forks import Missed
from holdfast.reading.remedies import CommandLine, Remedy

VERBS = tuple(verb for verb, record in (RECORDS | MAKING).items() if record.traits.previewed)
"""The verbs that have a preview."""
_DECIDED_LATER = frozenset({"confirm", "repeat", "run_id", "labels", "by", "reason"})
"""Options that a caller chooses after looking at a preview."""


class PreviewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A child run because of which a run failed, or because of which such a child did."""

    run_id: str
    flow: str
    caller: str
    """The run that started it."""
    rerun: tuple[PreviewNode, ...] = ()
    """Visits that have begun before and run again, as in `Preview`."""
    asks: tuple[PreviewNode, ...] = ()
    left: str | None = None
    """Why the run is left alone; None if it is resumed with its caller."""


class PreviewCancelled(msgspec.Struct, frozen=True, kw_only=True):
    """A child run that is cancelled with its caller."""

    run_id: str
    flow: str
    caller: str
    """The run that started it."""
    uncleaned: tuple[Uncleaned, ...] = ()
    """Its visits whose cleanup will not run, or not to its end, as in `Preview`."""


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a verb would do to a run. Nodes are listed in the order in which the run first reached them."""

    run_id: str
    verb: str
    at: int | None = None
    """The event that the run goes back to, or that the fork begins from; None if the run continues from the end of its log."""
    kept: tuple[PreviewNode, ...] = ()
    """Completed or skipped visits, which do not run again."""
    rerun: tuple[PreviewNode, ...] = ()
    """Visits that have begun before and run again, if the run takes the same path."""
    confirm: tuple[PreviewNode, ...] = ()
    """Nodes that are not idempotent and would repeat what they did: `confirm` of a resume must name them; a fork asks about them,
    unless its `repeat` decides. A node of a child run is named `RUN/node`.
    """
    asks: tuple[PreviewNode, ...] = ()
    """Visits that have begun before, and about which the run asks a question before they run again."""
    skips: tuple[PreviewNode, ...] = ()
    """Visits that are skipped: by the verb itself, or without another attempt when the run continues."""
    stops: tuple[PreviewNode, ...] = ()
    """Visits that have begun and end without a result."""
    uncleaned: tuple[Uncleaned, ...] = ()
    """Visits that a cancel ends and whose cleanup will not run, or not to its end. A node that runs cleans up by itself, so it is
    listed only afterwards, in `run.uncleaned`, if it does not stop in time.
    """
    cancels: tuple[PreviewCancelled, ...] = ()
    """The child runs that are cancelled with the run, and theirs: each caller is followed by its children. The digest does not
    cover them, because they change while the run waits for them."""
    closes: tuple[Question, ...] = ()
    """The open questions that are closed without an answer."""
    missed: tuple[Missed, ...] = ()
    """The signals and answers that the run has received and the fork would not have."""
    leaves: tuple[str, ...] = ()
    """The child runs that have not ended for good, and that the run leaves alone: they go on without it."""
    family: tuple[PreviewRun, ...] = ()
    """The failed runs below the run that are resumed with it, or left alone: each caller is followed by its children."""
    refused: str | None = None
    """Why the verb would be refused; None if it would be carried out."""
    error: str | None = None
    """The name of the exception with which the verb would be refused."""
    remedies: tuple[Remedy, ...] = ()
    """What can be done instead, if the verb would be refused."""
    unknown: tuple[str, ...] = ()
    """What this process cannot say about the verb, because it does not know the flow of the run."""
    command: str | None = None
    """The command that does what the preview shows; None if an option is a Python function."""
    digest: str = ""
    """A digest of the verb, its options and what it would do: `expects=` of the verb."""


class Mended(msgspec.Struct, frozen=True, kw_only=True):
    """A child run because of which a run failed, and what becomes of it when its caller is resumed or retried."""

    run_id: str
    flow: str
    caller: str
    left: str | None = None
    """Why it is left alone; None if it is resumed."""
    preview: Preview | None = None
    """What its resume does, its own children included; None if it is left alone."""

    def listed(self) -> tuple[PreviewRun, ...]:
        """Return it with the runs below it, as a preview of its caller lists them."""
        made = self.preview or Preview(run_id=self.run_id, verb="resume")
        one = PreviewRun(
            run_id=self.run_id,
            flow=self.flow,
            caller=self.caller,
            rerun=made.rerun,
            asks=made.asks,
            left=self.left,
        )
        return (one, *made.family)


class VerbCall(msgspec.Struct, frozen=True, kw_only=True):
    """The verb that a preview is about, and its options as plain data. Options that have their default value are left out."""

    run_id: str
    verb: str
    options: dict[str, Any]
    is_typable: bool = True
    """False if an option is a function, which no command line can have."""


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of rehearsing a verb."""

    wanted: VerbCall
    preview: Preview
    is_undecided: bool = False
    """True if the verb is refused only because `confirm` does not name all nodes that it must name."""
    refused: Exception | None = None
    """The exception with which the verb is refused, if it is; `preview` has its text."""


def make(
    wanted: VerbCall,
    found: Consequences,
    *,
    confirm: Iterable[PreviewNode] = (),
    at: int | None = None,
    path: Iterable[tuple[int, int]] = (),
    refused: HoldfastError | None = None,
    is_undecided: bool = False,
    unknown: Iterable[str] = (),
    family: Iterable[Mended] = (),
    uncleaned: Iterable[Uncleaned] = (),
    cancels: Iterable[PreviewCancelled] = (),
    missed: Iterable[Missed] = (),
) -> Preview:
    """Make a preview. `path` are the ranges of the log that led to the state of the run: a rewind makes a preview stale. If
    `is_undecided` is true, the verb is refused only because `confirm` does not name the nodes it has to. `family` are the
    children because of which the run failed; `uncleaned`, the visits that cannot clean up; `cancels`, the children that are
    cancelled with the run; `missed`, the signals and answers that a fork would not have.
    """
    family = tuple(family)
    preview = Preview(
        run_id=wanted.run_id,
        verb=wanted.verb,
        at=at,
        kept=found.kept,
        rerun=found.rerun,
        confirm=tuple(confirm),
        asks=found.asks,
        skips=found.skips,
        stops=found.stops,
        uncleaned=tuple(uncleaned),
        cancels=tuple(cancels),
        missed=tuple(missed),
        closes=found.closes,
        leaves=found.leaves if wanted.verb != "fork" else (),
        family=tuple(listed for one in family for listed in one.listed()),
        refused=_why(refused) if refused is not None else None,
        error=_public_name(refused) if refused is not None else None,
        unknown=tuple(unknown),
    )
    final = preview.refused if not is_undecided else None
    resumed = [one.preview.digest for one in family if one.preview is not None]
    return msgspec.structs.replace(preview, digest=_digest(wanted, preview, list(path), final, resumed))


def _why(refused: HoldfastError) -> str:
    """Return the reason of a refusal, without "was not resumed": in a preview, nothing was tried."""
    return refused.reason if isinstance(refused, ResumeRefused) else str(refused)


def _public_name(refused: HoldfastError) -> str:
    """Return the name of an exception's class, or of its nearest base class that users know."""
    known = (cls.__name__ for cls in type(refused).__mro__ if cls.__module__ == HoldfastError.__module__)
    return next(known)


def _digest(
    wanted: VerbCall,
    preview: Preview,
    path: list[tuple[int, int]],
    refused: str | None,
    resumed: list[str],
) -> str:
    """Return the digest of a preview. That of a child run which is resumed too covers its own children."""
    options = {name: value for name, value in wanted.options.items() if name not in _DECIDED_LATER}
    decided = {one.node for one in preview.confirm}
    lists = [
        [_facts(one) for one in nodes if one.node not in decided]
        for nodes in (preview.rerun, preview.asks, preview.skips, preview.stops)
    ]
    confirm = [_facts(one) for one in preview.confirm]
    closes = [question.key for question in preview.closes]
    told = [wanted.run_id, wanted.verb, options, path, lists, confirm, closes, refused, *resumed]
    return sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:32]


def _facts(one: PreviewNode) -> list[Any]:
    """Return what the digest covers of the visits of a node: not how often an attempt of it has failed meanwhile, or when."""
    return [one.node, one.first, one.last, one.status in VISIT_DONE]


def refuse_stale(preview: Preview, expects: str, asked: str) -> None:
    """Refuse to carry out a verb that would do something else than the caller has seen. Raises `PreviewStale`."""
    if preview.digest == expects:
        return
    verb, run_id = preview.verb, preview.run_id
    now = f"it would be refused: {preview.refused}" if preview.refused else f"it would {summary(preview)}"
    raise PreviewStale(
        run_id,
        f"it would not do what the preview {expects!r} said. Now {text.one_line(now, 500)}. Look at it with "
        f"`holdfast {verb} {run_id} --dry-run` and the same options, and ask again with the new digest.",
        asked=asked,
    )


def summary(preview: Preview) -> str:
    """Say in a few words what a verb would do, after "it would"."""
    told = [
        words.format(", ".join(one.node for one in nodes))
        for words, nodes in (
            ("run {} again", preview.rerun),
            ("ask about {}", preview.asks),
            ("skip {}", preview.skips),
            ("stop {}", preview.stops),
        )
        if nodes
    ]
    if resumed := [one.run_id for one in preview.family if one.left is None]:
        told.append(f"resume {' and '.join(resumed)}")
    if preview.leaves:
        told.append(f"leave {text.count(len(preview.leaves), 'child run')} alone")
    if preview.closes:
        told.append(f"close {text.count(len(preview.closes), 'question')}")
    return "; ".join(told) or "run no node again"


# --- as commands -------------------------------------------------------------------------------------


def with_commands(
    rehearsed: Rehearsed, commands: CommandLine, usual: Iterable[Remedy], *, wants_base: bool = False
) -> Preview:
    """Return the preview with the command that does it. If it would be refused, add the ways out: those of the refusal, then the
    `usual` remedies of the run, without the one that is refused.
    """
    wanted, preview = rehearsed.wanted, rehearsed.preview
    options = dict(wanted.options)
    if preview.verb in ("resume", "retry") and preview.confirm:
        options["confirm"] = [one.node for one in preview.confirm]
    command = _command(wanted, options, commands, wants_base=wants_base) if wanted.is_typable else None
    if preview.refused is None:
        return msgspec.structs.replace(preview, command=command)
    found: list[Remedy] = []
    if rehearsed.is_undecided and command is not None:
        names = " and ".join(one.node for one in preview.confirm)
        words = f"run {names} AGAIN, which {'is' if len(preview.confirm) == 1 else 'are'} not idempotent"
        named = "run" if wanted.verb == "resume" else "run_id"
        found.append(Remedy(wanted.verb, {named: wanted.run_id, **options}, words, command))
    if preview.error == "RunOver":
        found.append(ways.fork(commands, wanted.run_id))
    if preview.error == "RunHeld":
        words = "let its running nodes end and start no other; then resume it"
        found.append(Remedy("pause", {"run_id": wanted.run_id}, words, commands.line("pause", wanted.run_id)))
    same = {"run": wanted.run_id, **wanted.options}
    typed = {one.command for one in found}
    found += [
        one for one in usual if one.command not in typed and (one.verb, one.arguments) != (wanted.verb, same)
    ]
    return msgspec.structs.replace(preview, command=command, remedies=tuple(found))


def _command(wanted: VerbCall, options: Mapping[str, Any], commands: CommandLine, *, wants_base: bool) -> str:
    verb, run_id = wanted.verb, wanted.run_id
    needs_file = verb in ("resume", "retry", "skip") or "edit" in options
    typed = [
        verb,
        run_id if verb != "fork" or "checkpoint" not in options else f"{run_id}@{options['checkpoint']}",
    ]
    if "node" in options:
        typed.append(options["node"])
    typed += commands.file_words() if needs_file or (verb == "fork" and commands.is_file_given) else ()
    for name, value in options.items():
        if name != "node" and not (verb == "fork" and name == "checkpoint"):
            typed += _option(name, value)
    base = commands.base_for(wants_base=wants_base) if needs_file and verb != "fork" else None
    return commands.line(*typed, run_base=base)


_TYPED = {"labels": "--label"}
"""Option of the engine -> the name of the option on the command line, if it differs."""


def _option(name: str, value: Any) -> list[str]:
    """Return an option as it is typed. The fields of an edit and of an update are JSON; names by node are repeated."""
    typed = _TYPED.get(name, f"--{name.replace('_', '-')}")
    if value is True:
        return [typed]
    if name in ("edit", "update"):
        return [typed, text.json_text(value, indent=None)]
    if isinstance(value, Mapping):
        return [word for key, one in value.items() for word in (typed, f"{key}={one}")]
    if isinstance(value, (list, tuple)):
        return [word for one in value for word in (typed, str(one))]
    return [typed, str(value)]
