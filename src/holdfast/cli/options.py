"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import functools
import getpass
import inspect
import json
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import msgspec
import typer

from holdfast.cli import program
from holdfast.core import budget as limits
from holdfast.core.verb_options import Given, options_of
from holdfast.errors import SettingError, did_you_mean
from holdfast.storage.contract import STATUSES, Query, RunStatus

Command = TypeVar("Command", bound=Callable[..., int | None])

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where runs are kept: a path, or postgresql://…. Default: HOLDFAST_STORE or .holdfast/runs.db.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="How many seconds running nodes get to finish after Ctrl-C or SIGTERM. Default: 30.",
    ),
]
RunBase = Annotated[
    str | None,
    typer.Option(
        "--run-base",
        metavar="DIR",
        help="The folder for receipts, handoffs and artifacts. Default: HOLDFAST_RUN_BASE; without either, none are written.",
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input", "-i", metavar="JSON|@FILE", help="The state that the run begins with, as a JSON object."
    ),
]
Resources = Annotated[
    str | None,
    typer.Option(
        "--resources",
        metavar="FILE.py:NAME",
        help="A dict for ctx.resources, or a function or context manager that makes it. Default: [tool.holdfast] resources.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", help="Your name, recorded in the log of the run. Default: your login name."
    ),
]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="TEXT", help="Why you do this; the reason is recorded in the log of the run."
    ),
]
File = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE.py[:FLOW]",
        help="The Python file that defines the flow. Default: [tool.holdfast] flows in pyproject.toml.",
    ),
]
FlowFile = Annotated[
    str, typer.Argument(metavar="FILE.py[:FLOW]", help="The Python file that defines the flow.")
]
NewRunId = Annotated[
    str | None,
    typer.Option(
        "--run-id",
        metavar="ID",
        help="The id of the new run. Default: the flow's name and a random suffix.",
    ),
]
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="NAME=VALUE",
        help="A label for the run, which `holdfast runs` can filter by; repeatable.",
    ),
]


OnlyStatus = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"List only runs with this status: {', '.join(STATUSES)}; repeatable.",
    ),
]
OnlyFlow = Annotated[str | None, typer.Option("--flow", metavar="NAME", help="List only runs of this flow.")]
OnlyLabel = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="List only runs with this label; repeatable."),
]
OnlyQueue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="List only runs of this queue.")
]
Attention = Annotated[
    bool,
    typer.Option(
        "--attention", help="List only runs that ask a question, failed, or should continue and do not."
    ),
]


def check_run_id(given: str | None) -> str | None:
    """Check an argument that takes a run id, and refuse RUN@SEQ."""
    if given is not None and "@" in given:
        run_id = given.partition("@")[0]
        raise typer.BadParameter(
            f"{given!r} is a place in the log of a run, but this command takes only the id of a run: {run_id}. "
            "The commands show, state, resume and fork take RUN@SEQ."
        )
    return given


def check_place(given: str | None) -> str | None:
    """Check an argument that takes a run id, or RUN@SEQ for a place in the log of the run."""
    if given is None:
        return None
    run_id, at, seq = given.partition("@")
    if at and not (seq.isascii() and seq.isdecimal()):
        raise typer.BadParameter(
            f"{given!r}: give the number of an event after the @, as in {run_id}@3. "
            f"`{program.name()} checkpoints {run_id}` lists the events that the run can go back to."
        )
    return given


OnlyParent = Annotated[
    str | None,
    typer.Option("--parent", metavar="RUN", callback=check_run_id, help="List only forks of this run."),
]
OnlyOrigin = Annotated[
    str | None,
    typer.Option(
        "--origin", metavar="RUN", callback=check_run_id, help="List only child runs that this run started."
    ),
]
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", callback=check_run_id, help="The id of a run; `holdfast runs` lists them."),
]
RunIdOrWhere = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]", callback=check_run_id, help="The id of a run. Without it, --where chooses runs."
    ),
]
RunAt = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@SEQ]",
        callback=check_place,
        help="The id of a run, or RUN@SEQ for one of its checkpoints.",
    ),
]
RunAtOrWhere = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN[@SEQ]]",
        callback=check_place,
        help="The id of a run, or RUN@SEQ for one of its checkpoints. Without it, --where chooses runs.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FIELD=VALUE",
        help="In place of RUN: every run for which this is true, e.g. status=failed or flow=order; repeatable.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print which nodes would run again and which are kept, and change nothing. With --where: how many runs match.",
    ),
]
DryRunOfOne = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print which nodes would run again and which are kept, and change nothing."
    ),
]
Expects = Annotated[
    str | None,
    typer.Option(
        "--expects",
        metavar="DIGEST",
        help="Do it only if it does what --dry-run --json has shown: its digest.",
    ),
]
NoExecute = Annotated[
    bool,
    typer.Option("--no-execute", help="Execute nothing here: leave a request, which a worker carries out."),
]


def read_json(given: str | None, option: str) -> Any:
    """Return the value of an option that takes JSON or `@FILE`; None if the option was not given."""
    if given is None:
        return None
    text, where = given, option
    typed = f"{option} " if option.startswith("--") else ""
    if given.startswith("@"):
        where = given[1:]
        try:
            with open(where, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as fault:
            told = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
            raise SettingError(
                f"{option} {given}: the file cannot be read: {told}. Check the path after the @."
            ) from fault
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        raise SettingError(
            f"{where} is not JSON: {fault}. Put strings and names in double quotes, and the whole value in single quotes: "
            f"""{typed}'{{"topic": "tides"}}'; or name a file that contains the JSON: {typed}@input.json."""
        ) from fault


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def read_fields(given: str | None, option: str) -> dict[str, Any] | None:
    """Return the value of an option that takes fields of a state as a JSON object; None if it was not given."""
    value = read_json(given, option)
    if value is not None and not isinstance(value, dict):
        raise SettingError(
            f"""{option} takes a JSON object of fields, as in '{{"field": 1}}', not {json.dumps(value)[:60]}"""
        )
    return value


def read_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """Return the values of a repeatable option such as `--label NAME=VALUE` as a dict."""
    pairs = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise SettingError(f"{option} {pair!r}: write it as {option} name=value")
        pairs[key] = value
    return pairs


def read_budget(given: str | None) -> limits.Budget | None:
    """Return the value of `--budget`, such as `usd=5,tokens=1000`. Raises `SettingError`."""
    if given is None:
        return None
    found: dict[str, Any] = {}
    for pair in given.split(","):
        name, _equals, value = (part.strip() for part in pair.partition("="))
        try:
            found[name] = float(value) if name != "tokens" else int(value)
        except ValueError:
            raise SettingError(
                f"--budget {given!r}: write limits as NAME=NUMBER, such as --budget usd=5,tokens=100000"
            ) from None
    return limits.check_budget(found, f"--budget {given}")


def read_status(name: str) -> RunStatus:
    """Return the status of this name. Raises `SettingError`."""
    for status in STATUSES:
        if name == status:
            return status
    if name == "pausing":
        raise SettingError(
            "'pausing' is not a status by which runs can be listed: a run that is pausing is running until its nodes have ended. "
            "Use status running."
        )
    raise SettingError(
        f"{name!r} is not a status of a run; the statuses are {', '.join(STATUSES)}{did_you_mean(name, STATUSES)}"
    )


def read_query(
    status: Sequence[str] | None,
    flow: str | None,
    label: Sequence[str] | None,
    parent: str | None,
    origin: str | None,
    queue: str | None,
    *,
    limit: int,
) -> Query:
    """Return which runs the options of a command that lists runs choose. Raises `SettingError`."""
    return Query(
        status=tuple(map(read_status, status or ())),
        flow=flow,
        labels=read_pairs(label or (), "--label"),
        parent=parent,
        origin=origin,
        queue=queue,
        limit=limit,
    )


_FIELDS = ("status", "flow", "label", "parent", "origin", "queue")
"""What runs can be chosen by, with `--where` and with the options of `holdfast runs`."""


def read_where(given: Sequence[str]) -> Query:
    """Return which runs the conditions of `--where` choose. Several statuses mean any of them."""
    found: dict[str, list[str]] = {field: [] for field in _FIELDS}
    for condition in given:
        field, equals, value = condition.partition("=")
        if equals and field not in _FIELDS:
            raise SettingError(
                f"--where {condition!r}: runs have no field {field!r}; the fields are {', '.join(_FIELDS)}"
                f"{did_you_mean(field, _FIELDS)}"
            )
        if not equals or not value:
            raise SettingError(
                f"--where {condition!r}: give a field and its value, as in --where status=failed. The fields are "
                f"{', '.join(_FIELDS)}."
            )
        if field == "label" and value.find("=") < 1:
            raise SettingError(
                f"--where {condition!r}: a label has a name and a value; write it as --where label=NAME=VALUE"
            )
        found[field] += [value] if value not in found[field] else []
    labels = read_pairs(found["label"], "--where label:")
    if len(labels) < len(found["label"]):
        _refuse_both("label", found["label"])
    for field in ("flow", "parent", "origin", "queue"):
        if len(found[field]) > 1:
            _refuse_both(field, found[field])
    return Query(
        status=tuple(map(read_status, found["status"])),
        labels=labels,
        flow=next(iter(found["flow"]), None),
        parent=next(iter(found["parent"]), None),
        origin=next(iter(found["origin"]), None),
        queue=next(iter(found["queue"]), None),
    )


def _refuse_both(field: str, values: Sequence[str]) -> None:
    raise SettingError(
        f"--where {field}: no run has both {values[0]} and {values[1]}; give one of them, and call the command again for the "
        "other"
    )


def resolve_actor(given: str | None) -> str | None:
    """Return the value of `--by`, or the login name; None if neither is known."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


# --- the options of a verb ---------------------------------------------------------------------------

Said: TypeAlias = dict[str, Any]
"""The values of the options that follow from the record of a verb. As the type of a parameter, it stands for all of them."""
_OWN = frozenset({"by", "reason", "expects"})
"""Options of a record that commands write in their own way."""


OF_CHANGES = ("on_change", "rename")
"""The options of `resume` that a worker also takes, for all runs that it continues."""
NOT_TYPED = ("begin_at", "labels", "on_exists")
"""Options of a new run that commands have in another form, or not at all."""


def check_timeout(timeout: float | None) -> None:
    """Refuse a timeout of a new run that is not above 0. Raises `SettingError`."""
    if timeout is not None and not timeout > 0:
        raise SettingError(f"--timeout must be a number of seconds above 0, not {timeout:g}")


def of(
    record: type[msgspec.Struct], *, without: Collection[str] = (), only: Collection[str] | None = None
) -> Callable[[Command], Command]:
    """Decorate a command with a parameter of the type `Said`: in its place, the command takes every option of the record of a
    verb that is not one of its own parameters, except those that are named in `without`; with `only`, it takes only those.
    """

    def decorate(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True)
        known = {
            name: given
            for name, given in options_of(record).items()
            if not (name in own.parameters or name in _OWN or name in without or given.option.is_header)
            and (only is None or name in only)
        }
        place = next(name for name, one in own.parameters.items() if one.annotation == Said)
        parameters: list[inspect.Parameter] = []
        for name, parameter in own.parameters.items():
            parameters += map(_parameter, known.values()) if name == place else [parameter]

        @functools.wraps(function)
        def call(**values: Any) -> int | None:
            said = {name: _read(given, values.pop(name)) for name, given in known.items()}
            return function(**values, **{place: said})

        call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def argument(record: type[msgspec.Struct], name: str, more: str = "") -> Any:
    """Return the argument of a command for an option of the record of a verb. `more` is said after its sentence."""
    given = options_of(record)[name].option
    return typer.Argument(metavar=given.metavar, help=f"{given.says} {more}".rstrip())


def option(record: type[msgspec.Struct], name: str) -> Any:
    """Return the option of a command that reads the value of an option of the record in its own way."""
    given = options_of(record)[name]
    return typer.Option(_flag(given), metavar=given.option.metavar, help=given.option.says)


def _flag(given: Given) -> str:
    return f"--{given.name.replace('_', '-')}"


def of_one_run(record: type[msgspec.Struct], said: Said) -> dict[str, Any]:
    """Return the options that have no meaning in a request to many runs, by their flags, with their values."""
    known = options_of(record)
    return {_flag(known[name]): said[name] or None for name in said if not known[name].option.of_many}


def _is_repeated(given: Given) -> bool:
    return given.is_of(list) or given.type == dict[str, str]


def _parameter(given: Given) -> inspect.Parameter:
    """Return the parameter of a command for an option of a record."""
    kind, default, says = given.type, given.default, given.option.says
    if _is_repeated(given):
        kind, says = list[str] | None, f"{says.removesuffix('.')}; repeatable."
    elif given.is_of(dict):
        kind, says = str | None, f"{says.removesuffix('.')}, as a JSON object."
    elif given.is_of(limits.Budget):
        kind, says = (
            str | None,
            f"{says} Write usd=5, tokens=100000 or active_s=600, or several, separated by commas.",
        )
    elif given.type is Any:
        kind = str | None
    elif given.is_of(float):
        kind = float | None
    declared = typer.Option(_flag(given), metavar=given.option.metavar or None, help=says, min=_least(given))
    default = default if isinstance(default, (bool, str, int)) else None
    return inspect.Parameter(
        given.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _least(given: Given) -> int | None:
    """Return the least number that an option takes; None if it has no such limit, or another one besides."""
    for part in (given.option.limit, *get_args(given.option.limit)):
        for meta in getattr(part, "__metadata__", ()):
            if (
                isinstance(meta, msgspec.Meta)
                and meta.ge is not None
                and meta.le is None
                and given.is_of(int)
            ):
                return int(meta.ge)
    return None


def _read(given: Given, typed: Any) -> Any:
    """Return the value of an option of a record. Raises `SettingError`."""
    if given.type == dict[str, str]:
        return read_pairs(typed or [], _flag(given))
    if given.is_of(dict):
        return read_fields(typed, _flag(given))
    if given.is_of(limits.Budget):
        return read_budget(typed)
    if given.type is Any:
        return given.default if typed is None else read_json(typed, _flag(given))
    if given.is_of(list) and typed is None:
        return [] if given.default == () else None
    return typed
