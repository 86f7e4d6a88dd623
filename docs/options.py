"""Writes the table of the options of every verb into docs/api.md, from the records of `holdfast.core.requests`:
`python docs/options.py`
"""

from __future__ import annotations

import inspect
from pathlib import Path

import holdfast as hf
from holdfast.core.requests import MAKING, RECORDS
from holdfast.core.verb_options import option_in, options_of

FILE = Path(__file__).with_name("api.md")
HEADING = "### The options of the verbs\n"
ABOUT = """
The verbs of `Engine`, of `hf.connect()` and the functions of the module have these options; the client has them without
functions, and `wait` in place of `execute`. `help(hf.resume)` lists them too.

| verb | option | default | meaning |
|---|---|---|---|
"""
VERBS = [verb for verb, record in (MAKING | RECORDS).items() if record.traits.role is not None]


def table() -> str:
    """Return the section as it is in the document."""
    rows = []
    for verb in VERBS:
        record = (RECORDS | MAKING)[verb]
        known = {name: given.option for name, given in options_of(record).items()}
        function = getattr(hf.Engine, verb)
        for name, parameter in list(inspect.signature(function).parameters.items())[2:]:
            option = option_in(_hints(verb).get(name)) or known.get(name)
            if option is not None:
                default = "" if parameter.default is parameter.empty else f"`{_shown(parameter.default)}`"
                rows.append(f"| `{verb}` | `{name}` | {default} | {option.says} |")
    return HEADING + ABOUT + "\n".join(rows) + "\n"


def _hints(verb: str) -> dict[str, object]:
    from holdfast.core import requests

    return dict(getattr(requests, f"{verb.capitalize()}Here").__annotations__)


def _shown(default: object) -> str:
    return "not given" if repr(default) == "UNSET" else repr(default)


def with_table(document: str) -> str:
    """Return the document with the section as it has to be."""
    before, _, after = document.partition(HEADING)
    return before + table() + "\n" + after[after.index("\n### ") + 1 :]


if __name__ == "__main__":
    FILE.write_text(with_table(FILE.read_text("utf-8")), "utf-8")
