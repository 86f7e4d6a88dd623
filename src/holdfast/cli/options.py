"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import getpass
import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli import program
from holdfast.errors import SettingError

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where runs are kept: a path, or postgresql://…. Default: HOLDFAST_STORE or .holdfast/runs.db.",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON for a program instead of text for a person.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="How many seconds running nodes get to end after Ctrl-C. Default: 30.",
    ),
]
RunBase = Annotated[
    str | None,
    typer.Option(
        "--run-base",
        metavar="DIR",
        help="The folder for receipts, handoffs and artifacts. Default: HOLDFAST_RUN_BASE; if that is not set, none are written.",
    ),
]
Input = Annotated[
    str | None,
    typer.Option("--input", "-i", metavar="JSON|@FILE", help="The state to begin with, as a JSON object."),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", metavar="NAME", help="The queue in which the run waits for a worker. Default: default."
    ),
]
Priority = Annotated[
    int,
    typer.Option(
        "--priority",
        metavar="N",
        help="The priority of the run: workers claim runs with a higher one first. Default: 0.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        "--by", metavar="NAME", help="Who does this, for the log of the run. Default: your login name."
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
        help="The file that defines the flow. Default: [tool.holdfast] flows in pyproject.toml.",
    ),
]


def a_run(given: str | None) -> str | None:
    """What names a run, and no place in its log."""
    if given is not None and "@" in given:
        run_id = given.partition("@")[0]
        raise typer.BadParameter(
            f"{given!r} is a place in the log of a run, and this command takes a RUN: {run_id}. "
            "RUN@SEQ is for state, resume and fork."
        )
    return given


def a_place(given: str) -> str:
    """What names a run, or a place in its log by number."""
    run_id, at, seq = given.partition("@")
    if at and not (seq.isascii() and seq.isdecimal()):
        raise typer.BadParameter(
            f"{given!r}: after the @ comes the number of an event, as in {run_id}@3. "
            f"`{program.name()} checkpoints {run_id}` lists where a run can be gone back to."
        )
    return given


RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", callback=a_run, help="The id of a run; `runs` lists them."),
]
RunAt = Annotated[
    str,
    typer.Argument(
        metavar="RUN[@SEQ]", callback=a_place, help="The id of a run, or of one of its checkpoints."
    ),
]
Edit = Annotated[
    str | None,
    typer.Option(
        "--edit", metavar="JSON|@FILE", help="Fields of the state to change first, as a JSON object."
    ),
]


def read_json(given: str | None, option: str) -> Any:
    """The value of a JSON option: written out, or `@file` that holds it. None where it was not given."""
    if given is None:
        return None
    text, where = given, option
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
            f"{where} is not JSON: {fault}. Write strings and names in double quotes, and the whole in single quotes: "
            f"""{option} '{{"topic": "tides"}}', or put it into a file: {option} @input.json."""
        ) from fault


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def read_fields(given: str | None, option: str) -> dict[str, Any] | None:
    """The value of an option that names fields of a state."""
    value = read_json(given, option)
    if value is not None and not isinstance(value, dict):
        raise SettingError(
            f"""{option} takes a JSON object of fields, as in '{{"field": 1}}', not {json.dumps(value)[:60]}"""
        )
    return value


def read_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """The values of an option like `--label key=value`."""
    pairs = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise SettingError(f"{option} {pair!r}: write it as {option} name=value")
        pairs[key] = value
    return pairs


def who(given: str | None) -> str | None:
    """Who does this: as given, or the login name, or unknown."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
