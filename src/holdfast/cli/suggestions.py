"""Builds the commands that Holdfast suggests, and prints diagnoses, remedies and open visits.

The facts come from `reading/`. This module adds what a suggested command must name so that it can be pasted: the program, the
file of the flow, the store and the run base.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.cli import flow_files, program, screen
from holdfast.errors import HoldfastError
from holdfast.reading import history, words
from holdfast.reading.diagnosis import REFUSED, Diagnosis
from holdfast.reading.open_visits import OpenVisit
from holdfast.reading.reader import Reader
from holdfast.reading.remedies import PLACEHOLDER, CommandLine, Remedy
from holdfast.reading.views import RequestView
from holdfast.runtime import settings
from holdfast.runtime.worker import Trouble
from holdfast.storage import urls

_NAMES_MAX = 8
_FLOWS_MAX = 3


def command_line(
    *, file: str | None = None, store: str | None = None, run_base: str | None = None
) -> CommandLine:
    """Return how suggested commands are typed here: with the file, store and run base that this command was called with."""
    listed = tuple(flow_files.split(entry)[0] for entry in settings.project_flows())
    return CommandLine(
        program=program.name(),
        file=file if file is not None else None if listed else PLACEHOLDER,
        is_file_given=file is not None,
        listed=listed,
        folder=os.getcwd(),
        store=urls.shown(store) if store is not None else None,
        run_base=run_base,
        has_run_base=bool(settings.resolve({}).run_base),
        is_server=urls.is_server(settings.resolve({"store": store}).store),
    )


def line(verb: str, *words: str, store: str | None = None) -> str:
    """Return a command as it can be pasted, without the password of the store."""
    return command_line(store=store).line(verb, *words)


def resume_line(
    run_id: str, *, file: str | None = None, store: str | None = None, run_base: str | None = None
) -> str:
    """Return the command that resumes a run if the run itself could not be read."""
    commands = command_line(file=file, store=store, run_base=run_base)
    return commands.line("resume", run_id, *commands.file_words(), run_base=run_base)


def resume_line_of(reader: Reader, run_id: str, commands: CommandLine) -> str:
    """Return the command that resumes a run, with the options that it needs. A worker may have claimed the run already: then it
    is the command for later.
    """
    found = reader.resume_remedy(run_id, commands)
    return found.command if found is not None else commands.line("resume", run_id, *commands.file_words())


def typed_again(*more: str, without: str = "", replace: Mapping[str, str] | None = None) -> str:
    """Return the command that the user typed, so that it can be pasted again, with `more` words at its end. The option
    `without` and its value are left out, and the words in `replace` replaced. The password of the store is left out, too.
    """
    typed = program.typed()
    words: list[str] = []
    for before, word in zip(["", *typed], typed, strict=False):
        option, equals, value = word.partition("=")
        if without and without in (option, before):
            continue
        if "--store" in (option, before) and word != "--store":
            words.append(
                f"{option}={urls.shown(value)}" if equals and option == "--store" else urls.shown(word)
            )
        else:
            words.append((replace or {}).get(word, word))
    return f"{program.name()} {shlex.join([*words, *more])}"


def typed_with_file(recorded: str | None, *, in_place_of: str | None) -> str:
    """Return a sentence that says how to type this command with the file of the flow, which it needs: the `recorded` file if it
    exists here, in place of the file `in_place_of` if that was typed.
    """
    named = command_line().without_file().for_flow_of(recorded).file or PLACEHOLDER
    again = typed_again(named) if in_place_of is None else typed_again(replace={in_place_of: named})
    listed = f"[tool.holdfast] flows = [{screen.json_text(named)}]"
    return f"Name the file that defines it: `{again}`; or list that file in pyproject.toml: {listed}."


def say_remedies(remedies: Iterable[Remedy], *, err: bool = False) -> None:
    """Print remedies as commands, each with a comment that says what it does, and whether it is done in place of those before it
    (`or`) or after them (`then`).
    """
    listed = list(remedies)
    said = [
        (one.command, f"{_linked(one, listed[number + 1 :])}{one.words}") for number, one in enumerate(listed)
    ]
    say_commands(said, err=err)


def _linked(one: Remedy, later: list[Remedy]) -> str:
    """Return the word that links a remedy to the others: `either` if it begins ways that exclude each other."""
    if one.link:
        return f"{one.link} "
    way_out = next((other.link for other in later if other.link != "then"), "")
    return "either " if way_out == "or" else ""


def find_ways_out(reader: Reader, trouble: Trouble, commands: CommandLine) -> tuple[Remedy, ...]:
    """Return what can be done about a run that a worker cannot continue; nothing if another live worker may be able to."""
    if trouble.run_id is None:
        return ()
    try:
        found = reader.diagnose(trouble.run_id, commands)
    except HoldfastError:  # deleted since, or it cannot be read
        return ()
    return found.remedies if found.kind in REFUSED else ()


def say_trouble(trouble: Trouble, ways: Iterable[Remedy]) -> None:
    """Print a problem that a worker reports, and what can be done about it."""
    told = program.spell(trouble.message)
    whose = f"run {trouble.run_id!r}: " if trouble.run_id and repr(trouble.run_id) not in told else ""
    screen.say(("trouble: ", "yellow"), whose + told, err=True)
    say_remedies(ways, err=True)


def say_missing_workers(
    reader: Reader, runs: Iterable[tuple[str, str, str]], store: str | None, *, err: bool = False
) -> None:
    """Print which of these runs no live worker takes, and the command that starts one. A run is given by its id, flow and queue;
    one line is printed for each flow and queue.
    """
    holders = [one.holder for one in reader.store.queues.holders()]
    unclaimed: dict[tuple[str, str], str] = {}
    for run_id, flow, queue in runs:
        if (flow, queue) not in unclaimed and not any(holder.takes(flow, queue) for holder in holders):
            unclaimed[flow, queue] = run_id
    for (flow, queue), run_id in list(unclaimed.items())[:_FLOWS_MAX]:
        place = f" from queue {queue!r}" if any(flow in holder.flows for holder in holders) else ""
        where = " on the machine of the server" if hasattr(reader.store, "served") else ""
        told = f"no live worker takes flow {flow!r}{place}. Start one{where}: {worker_line(reader, run_id, store)}"
        screen.say(("  warning: ", "yellow"), told, err=err)


def worker_line(reader: Reader, run_id: str, store: str | None) -> str:
    """Return the command that starts a worker for the flow of a run: for a store on a server, as it is typed over there."""
    served: str | None = getattr(reader.store, "served", None)
    if served is not None:
        file = history.flow_file(reader.store, run_id) or PLACEHOLDER
        return CommandLine(program=program.name(), store=served).line("worker", file)
    commands = command_line(store=store)
    with suppress(HoldfastError):  # a damaged log: then the file is a placeholder
        commands = commands.for_flow_of(history.flow_file(reader.store, run_id))
    return commands.line("worker", *commands.file_words())


def say_request(one: RequestView, now: float) -> None:
    """Print a request that waits or was refused: who asked for what, when and why, and why it was refused."""
    style = "yellow" if one.status == "refused" else "cyan"
    by = f" by {one.by}" if one.by else ""
    why = f": {screen.one_line(one.reason, 300)}" if one.reason else ""
    what = f"{one.verb} {screen.one_line(one.about, 80)}" if one.about else one.verb
    screen.say((one.status, style), f"  {what}, asked{by} {screen.ago(now - one.at)}{why}")
    if one.refused is not None:
        when = f"{screen.ago(now - one.refused_at)}: " if one.refused_at is not None else ""
        why_not = one.refused.replace("\n", "\n  ")
        screen.say(f"  refused {when}{why_not}")


def say_commands(commands: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print commands, each with a comment that says what it does."""
    width = screen.picture_width()
    for command, does in commands:
        if len(command) + len(does) + 9 <= width:
            screen.say(("  $ ", "dim"), (command, "bold"), (f"   # {does}", "dim"), err=err)
        else:
            screen.say((f"  # {does}", "dim"), err=err)
            screen.say(("  $ ", "dim"), (command, "bold"), err=err)


def status_words(status: str, found: Diagnosis) -> str:
    """Return the status of a run, with "crashed" or "answered" added if the diagnosis says so; "pausing" if it is pausing."""
    if found.pausing:
        return "pausing"
    more = "crashed" if found.crashed else "answered" if found.answered else ""
    return f"{status}, {more}" if more else status


def say_visit(one: OpenVisit, head: str) -> None:
    """Print what is known about an open visit, under a heading."""
    screen.say("")
    screen.say(head)
    for name, fact in _facts(one):
        screen.say((f"  {name.ljust(10)}  ", "dim"), fact)
    for line in one.last_lines:
        screen.say(("  | ", "dim"), screen.last_of_line(line, screen.picture_width() - 4))


def _facts(one: OpenVisit) -> list[tuple[str, str]]:
    facts = [("steps kept", _named(one.steps))] if one.steps else []
    if one.items is not None:
        facts.append(("items done", f"{one.items[0]} of {one.items[1]}"))
    if one.checkpoint is not None:
        facts.append(("checkpoint", words.value(one.checkpoint)))
    if one.artifacts:
        facts.append(("artifacts", _named(one.artifacts)))
    if one.checkout:
        facts.append(("git", _checkout(one.checkout)))
    if one.chunks:
        ends = ", the last lines:" if one.last_lines else ""
        facts.append(("streamed", f"{screen.count(one.chunks, 'chunk')}{ends}"))
    return facts


def _named(names: list[str], unnamed: int = 0) -> str:
    shown = ", ".join(map(screen.one_line, names[:_NAMES_MAX]))
    more = max(0, len(names) - _NAMES_MAX) + unnamed
    return f"{shown} and {more} more" if more else shown


def _checkout(checkout: dict[str, Any]) -> str:
    head = checkout.get("head")
    where = f"HEAD {head[:12]}" if head else "no commit yet"
    branch = f" on {checkout['branch']}" if checkout.get("branch") else ", detached"
    changed = list(map(str, checkout.get("changed", [])))
    if not changed:
        return screen.one_line(f"{where}{branch}, nothing changed")
    more = int(checkout.get("more", 0))
    count = screen.count(len(changed) + more, "file")
    return screen.one_line(f"{where}{branch}, {count} changed: {_named(changed, more)}")
