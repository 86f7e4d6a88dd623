"""`Remedy`: an action that helps a run, as a method of the engine with its arguments, in words, and as a command to paste.

The verb and arguments are those of the engine (`engine.answer(**remedy.arguments)`), so that a page or a program can offer a
button. The command does the same in a terminal. A value that only the user knows is left out of the arguments, and is a
placeholder in capital letters in the command.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from holdfast.core import answers as answer_schemas
from holdfast.core.run_state import HAPPENED, DoubtfulStep, Question, Wait, awaited_signals
from holdfast.core.situation import QUESTIONS_FEW
from holdfast.reading import text
from holdfast.reading.inbox import EXECUTING

SHOWN_MAX = QUESTIONS_FEW
"""Remedies are listed for at most this many questions, and at most this many signals, of a run."""


class Remedy(msgspec.Struct, frozen=True):
    """An action that helps a run: resume it, answer its question, send a signal."""

    verb: str
    arguments: dict[str, Any]
    words: str
    """What the action does, in a few words."""
    command: str
    link: Literal["", "or", "then"] = ""
    """How it belongs to the remedies before it: it is done in place of them (`or`), after them (`then`), or independently."""


def either(*ways: Iterable[Remedy]) -> list[Remedy]:
    """Return ways that exclude each other as one list: each way after the first begins with `or`."""
    found: list[Remedy] = []
    for way in ways:
        for number, one in enumerate(way):
            is_next = bool(found) and not number
            found.append(msgspec.structs.replace(one, link="or") if is_next else one)
    return found


def in_turn(*steps: Iterable[Remedy]) -> list[Remedy]:
    """Return steps that are done one after the other as one list: each step after the first begins with `then`."""
    found: list[Remedy] = []
    for step in steps:
        for number, one in enumerate(step):
            is_next = bool(found) and not number
            found.append(msgspec.structs.replace(one, link="then") if is_next else one)
    return found


PLACEHOLDER = "FILE.py"
"""Stands for the file of a flow in a suggested command if the file is not known."""


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """How suggested commands are typed: the program, and the options that every command needs."""

    program: str = "holdfast"
    file: str | None = PLACEHOLDER
    """The file that defines the flow; None if pyproject.toml lists flows, so that commands need not name a file."""
    is_file_given: bool = False
    """True if the user named the file."""
    listed: tuple[str, ...] = ()
    """The files that pyproject.toml lists, as absolute paths."""
    folder: str = "."
    """The folder in which the commands are typed."""
    store: str | None = None
    """The value of `--store`, without its password; None for the default store."""
    run_base: str | None = None
    """The value of `--run-base`; None for the default."""
    has_run_base: bool = True
    """True if a default for `--run-base` is set."""
    is_server: bool = False
    """True if the store is on a server: a command that would execute a run leaves the request for a worker over there."""

    def line(self, *words: str, run_base: str | None = None) -> str:
        """Return a command as it can be pasted, with the options that it needs."""
        typed = [*words]
        if self.is_server and words[0] in EXECUTING:
            typed.append("--no-execute")
        elif run_base is not None:
            typed += ["--run-base", run_base]
        if self.store is not None:
            typed += ["--store", self.store]
        return f"{self.program} {shlex.join(typed)}"

    def without_file(self) -> CommandLine:
        """Return a copy for a flow that is neither in the given file nor in the files of the project: its commands contain the
        placeholder for a file.
        """
        return msgspec.structs.replace(self, file=PLACEHOLDER, is_file_given=False, listed=())

    def for_one_of(self, known: Collection[str], flow: str) -> CommandLine:
        """Return a copy for a run of `flow`. If the files that the commands would name define other flows (`known`), they are not
        named.
        """
        return self.without_file() if known and flow not in known else self

    def in_any_folder(self, store: str) -> CommandLine:
        """Return a copy whose commands work in every folder of this machine: paths are absolute, and `store` is named."""
        program, *words = shlex.split(self.program)
        if os.sep in program:
            program = os.path.normpath(os.path.join(self.folder, program))
        file = (
            os.path.normpath(os.path.join(self.folder, self.file or ""))
            if self.is_file_given
            else PLACEHOLDER
        )
        return msgspec.structs.replace(
            self, program=shlex.join([program, *words]), file=file, store=store, listed=()
        )

    def for_flow_of(self, recorded: str | None) -> CommandLine:
        """Return a copy whose commands name the file of a run's flow: `recorded`, the file (or `file:flow`) that the flow was
        loaded from when the run was created. A file that the user named, or that the project lists, takes precedence. If the
        recorded file does not exist here, the placeholder is used.
        """
        if recorded is None or self.is_file_given:
            return self
        file, colon, name = recorded.rpartition(":") if not os.path.exists(recorded) else (recorded, "", "")
        if not os.path.isfile(file) or (self.file is None and file in self.listed):
            return self
        inside = os.path.relpath(file, self.folder)
        return msgspec.structs.replace(
            self, file=(file if inside.startswith(os.pardir) else inside) + colon + name
        )

    def for_other_flow(self) -> CommandLine:
        """Return a copy for a child run, whose flow is probably in the same file: the file is named without a flow."""
        if self.file is None or ".py:" not in self.file:
            return self
        return msgspec.structs.replace(self, file=self.file.rpartition(":")[0])

    def file_words(self) -> tuple[str, ...]:
        """Return the argument that names the flow's file, or nothing if commands need none."""
        return (self.file,) if self.file is not None and not self.is_server else ()

    def base_for(self, *, wants_base: bool) -> str | None:
        """Return the value of `--run-base` for a command that executes a run: the given one, or the placeholder `DIR` if the run
        was created with a run base but none is set now.
        """
        if self.run_base is not None:
            return self.run_base
        return "DIR" if wants_base and not self.has_run_base else None


def resume(
    commands: CommandLine,
    run_id: str,
    words: str,
    *,
    force: bool = False,
    options: tuple[str, ...] = (),
    wants_base: bool = False,
    leaves: bool = False,
) -> Remedy:
    """Return the remedy that resumes a run. `options` are options of the command without which the resume would be refused. If
    `leaves` is true, the command leaves the request to a worker.
    """
    arguments: dict[str, Any] = {"run": run_id} | ({"force": True} if force else {}) | _as_arguments(options)
    typed = ("resume", run_id, *(("--force",) if force else ()), *options)
    if leaves:
        more = () if commands.is_server else ("--no-execute",)  # a server adds it
        return Remedy("resume", arguments, words, commands.line(*typed, *more))
    typed = (*typed[:2], *commands.file_words(), *typed[2:])
    line = commands.line(*typed, run_base=commands.base_for(wants_base=wants_base))
    return Remedy("resume", arguments, words, line)


def retry_fresh(commands: CommandLine, run_id: str, node: str, words: str = "") -> Remedy:
    """Return the remedy that repeats a visit from its beginning: it keeps nothing, and starts child runs of its own."""
    words = words or f"start {node} over: it starts another child run"
    line = commands.line("retry", run_id, node, *commands.file_words(), "--fresh")
    return Remedy("retry", {"run_id": run_id, "node": node, "fresh": True}, words, line)


def work(commands: CommandLine, flow: str, *, wants_base: bool = False, words: str = "") -> Remedy:
    """Return the remedy that starts a worker for the runs of a flow, in all queues."""
    line = commands.line("worker", *commands.file_words(), run_base=commands.base_for(wants_base=wants_base))
    return Remedy("work", {}, words or f"start a worker that takes flow {flow!r}: it claims the run", line)


def upgrade() -> Remedy:
    """Return the remedy for a run that a newer version of Holdfast has written."""
    words = "install the version of Holdfast that wrote it, or a newer one"
    return Remedy("upgrade", {}, words, "pip install --upgrade holdfast")


def _as_arguments(options: tuple[str, ...]) -> dict[str, Any]:
    """Convert command options (`--on-change compatible --rename old=new`) to arguments of the engine's `resume`."""
    found: dict[str, Any] = {}
    for option, value in zip(options[::2], options[1::2], strict=True):
        if option == "--rename":
            old, _, new = value.partition("=")
            found.setdefault("rename", {})[old] = new
        elif option == "--edit":
            continue  # only the user knows the value
        elif option in ("--scope", "--confirm"):
            found.setdefault(option.removeprefix("--"), []).append(value)
        elif option == "--budget":
            limits = dict(pair.split("=") for pair in value.split(","))
            found["budget"] = {
                name: int(limit) if name == "tokens" else float(limit) for name, limit in limits.items()
            }
        else:
            found[option.removeprefix("--").replace("-", "_")] = value
    return found


def skip(
    commands: CommandLine, run_id: str, node: str, words: str, *, file: str | None, wants_base: bool
) -> Remedy:
    """Return the remedy that skips a node. `file` replaces the flow file that other commands name."""
    named = (file,) if file is not None else commands.file_words()
    line = commands.line("skip", run_id, node, *named, run_base=commands.base_for(wants_base=wants_base))
    return Remedy("skip", {"run_id": run_id, "node": node}, words, line)


def fork(commands: CommandLine, run_id: str, seq: int | None = None) -> Remedy:
    """Return the remedy that forks a run: a new run continues from one of its checkpoints; or from `seq`, the last one from which
    it can continue with a flow that has changed. The command then names the file of that flow, if it is known: only with it
    can `fork` print the options with which the new run is resumed.
    """
    if seq is not None:
        words = f"fork it from @{seq}, the last checkpoint from which the changed flow can continue"
        file = commands.file_words() if commands.file != PLACEHOLDER else ()
        line = commands.line("fork", f"{run_id}@{seq}", *file)
        return Remedy("fork", {"run": run_id, "checkpoint": seq}, words, line)
    words = "make a new run from its latest checkpoint, or with RUN@SEQ from an earlier one"
    return Remedy("fork", {"run": run_id}, words, commands.line("fork", run_id))


def cancel(commands: CommandLine, run_id: str, words: str) -> Remedy:
    """Return the remedy that cancels a run."""
    return Remedy("cancel", {"run_id": run_id}, words, commands.line("cancel", run_id))


def look(commands: CommandLine, verb: str, run_id: str, words: str, *options: str) -> Remedy:
    """Return a remedy that only prints facts about a run: the command `verify`, `checkpoints` or `questions`."""
    return Remedy(verb, {"run_id": run_id}, words, commands.line(verb, run_id, *options))


def signals(commands: CommandLine, run_id: str, waits: tuple[Wait, ...]) -> list[Remedy]:
    """Return the remedies that send the signals which a run waits for. The oldest wait of a name receives the signal."""
    oldest = {wait.signal: wait for wait in reversed(waits) if wait.signal is not None}
    found = []
    for name in list(dict.fromkeys(awaited_signals(waits)))[:SHOWN_MAX]:
        schema = oldest[name].payload_schema
        typed, form_words = form(schema, as_json=True) if schema else ("", "")
        words = (
            f"send the signal with {form_words}"
            if schema
            else "send the signal; a payload, as JSON, may follow the name"
        )
        line = commands.line("signal", run_id, name, *((typed,) if typed else ()))
        found.append(Remedy("signal", {"run_id": run_id, "name": name}, words, line))
    return found


# --- answers -----------------------------------------------------------------------------------------


def answers_to_all(
    commands: CommandLine, run_id: str, questions: tuple[Question, ...], count: int
) -> list[Remedy]:
    """Return every answer to the first few of `count` questions, and a command that lists the other questions."""
    shown = questions[:SHOWN_MAX]
    among = shown if count <= SHOWN_MAX else ()
    found = [remedy for question in shown for remedy in answers(commands, run_id, question, among)]
    if count > SHOWN_MAX:
        found.append(look(commands, "questions", run_id, f"list all {count} questions"))
    return found


def answers(
    commands: CommandLine, run_id: str, question: Question, among: tuple[Question, ...]
) -> list[Remedy]:
    """Return the possible answers to a question as remedies, each with its consequence. The question is called by its node if it
    is the only one of that node `among` all open questions.
    """
    is_only_one = sum(other.node == question.node for other in among) == 1
    called = question.node if is_only_one else question.key
    found = []
    for value, words in choices(question):
        if value == HAPPENED and question.in_doubt:
            found += [_state(commands, run_id, question, called, step) for step in question.in_doubt]
            continue
        needs_flow = question.about == "interrupt" and value == "skip"
        rest = (*commands.file_words(), "--update", '{"FIELD": "VALUE"}') if needs_flow else ()
        arguments: dict[str, Any] = {"run_id": run_id, "question": question.key}
        if question.options or question.about == "interrupt":
            arguments["value"] = value
        found.append(
            Remedy("answer", arguments, words, commands.line("answer", run_id, called, value, *rest))
        )
    return either(*([one] for one in found))


def _state(commands: CommandLine, run_id: str, question: Question, called: str, step: DoubtfulStep) -> Remedy:
    """Return the answer that a step has happened, with its result. The step is named only if several are in doubt."""
    names = [one.step for one in question.in_doubt]
    which = ["--step", step.step] if len(names) > 1 else []
    which += ["--item", str(step.item)] if step.item is not None and names.count(step.step) > 1 else []
    typed, _ = form(step.result_schema, as_json=True)
    rest = (*which, "--result", typed, "--reason", "HOW YOU KNOW")
    arguments: dict[str, Any] = {
        "run_id": run_id,
        "question": question.key,
        "value": HAPPENED,
        "step": step.step,
    }
    arguments |= {} if step.item is None else {"item": step.item}
    named = step.step if step.item is None else f"{step.step} (item {step.item})"
    words = f"if the step {named} did happen: run {question.node} again, which gets this as its result"
    return Remedy("answer", arguments, words, commands.line("answer", run_id, called, HAPPENED, *rest))


def choices(question: Question) -> list[tuple[str, str]]:
    """Return the possible answers to a question as they are typed, each with its consequence."""
    node = question.node
    if question.about == "interrupt":
        return [
            ("retry", f"if its effect did not happen: run {node} again"),
            *(
                [(HAPPENED, f"if the step did happen: run {node} again, which gets its result")]
                * bool(question.in_doubt)
            ),
            (
                "skip",
                f"if its effect did happen (a payment went through): use these fields as the result of {node}",
            ),
            ("abort", "cancel the run"),
        ]
    if question.about == "repeat":
        has_result = "result" in question.partial or question.partial.get("items_done")
        used = "with the result that it had in the parent" if has_result else "without a result"
        return [
            ("run", f"run {node} again, with new idempotency keys"),
            ("skip", f"continue after {node}, {used}"),
            ("abort", "cancel the run"),
        ]
    if question.options and question.approving:
        several = len(question.options) > 2
        return [
            (
                option,
                f"continue with {node}"
                if option in question.approving
                else f"refuse{f' ({option})' if several else ''}: the run fails, and {node} never runs",
            )
            for option in question.options
        ]
    if question.options:
        return [(option, f"answer {node} with {option!r}") for option in question.options]
    typed, words = form(question.answer_schema)
    return [(typed, f"answer {node} with {words}")]


_FORMS = {
    "integer": ("NUMBER", "a whole number"),
    "number": ("NUMBER", "a number"),
    "string": ("TEXT", "a text"),
    "boolean": ("true", "true or false"),
    "array": ("[…]", "a list, as JSON"),
    "null": ("null", "null"),
}
_DEPTH_MAX = 4
"""How deep the values inside an object are written out."""


def form(schema: dict[str, Any], *, as_json: bool = False) -> tuple[str, str]:
    """Return what kind of value a question without options, or a wait, takes: a placeholder to type, and a description. A text
    is typed as it is; `as_json` with its quotes, because the payload of a signal is JSON.
    """
    defs = schema.get("$defs", {})
    found = [_resolve(one, defs) for one in _alternatives(_resolve(schema, defs))]
    described = dict.fromkeys(_describe(one, as_json=as_json) for one in found)
    meant = next((one for one in found if one.get("type") != "null"), found[0])
    typed = "TEXT" if _is_text(meant) and not as_json else _placeholder(meant, defs, _DEPTH_MAX)
    return typed, (", or " if any("," in one for one in described) else " or ").join(described)


def _placeholder(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> str:
    """A value as JSON: its default, the only or first value that is allowed, or a placeholder."""
    if not depth:
        return "…"
    schema = _resolve(schema, defs)
    choices = [schema[name] for name in ("default", "const") if name in schema] + schema.get("enum", [])
    if choices:
        return text.json_text(choices[0], indent=None)
    alternatives = _alternatives(schema)
    if alternatives != [schema]:
        return _placeholder(alternatives[0], defs, depth - 1)
    if _is_text(schema):
        return '"TEXT"'
    if schema.get("type") == "object":
        fields = schema.get("properties", {}).items()
        inner = ((name, _placeholder(field, defs, depth - 1)) for name, field in fields)
        return "{" + ", ".join(f"{text.json_text(name)}: {value}" for name, value in inner) + "}"
    return _FORMS.get(str(schema.get("type")), ("VALUE", ""))[0]


def _describe(schema: dict[str, Any], *, as_json: bool) -> str:
    allowed = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if allowed:
        return f"{'one of ' if len(allowed) > 1 else ''}{', '.join(map(str, allowed))}"
    if schema.get("type") == "object":
        return "an object, as JSON"
    if _is_text(schema) and (example := answer_schemas.example_of(schema)):
        return f"a text like {example!r}"
    anything = "JSON" if as_json else "JSON or a text"
    anything += f" for {schema['title']}" if "title" in schema else ""
    return _FORMS.get(str(schema.get("type")), ("", anything))[1]


def _is_text(schema: dict[str, Any]) -> bool:
    return schema.get("type") == "string" and "enum" not in schema and "const" not in schema


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema.get("anyOf") or schema.get("oneOf") or [schema]
    return found


def _resolve(schema: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The schema that this one refers to, with the default that is written beside the reference."""
    if not isinstance(schema, dict):  # `true`: any value
        return {}
    name = schema.get("$ref", "").rpartition("/")[2]
    if name not in defs:
        return schema
    found: dict[str, Any] = defs[name]
    return found | ({"default": schema["default"]} if "default" in schema else {})
