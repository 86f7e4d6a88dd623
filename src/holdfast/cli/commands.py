"""The `holdfast` program: all commands, grouped by family. The module of a command is imported only when the command is called.

Such a module imports the whole engine, which takes time. So the program takes the list of commands from the `catalogue`, and
builds a command when it is called or its `--help` is requested. `app` decides how a command ends; only typer's own errors about
wrong options are printed here, as JSON if `--json` was given.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from holdfast.cli import program
from holdfast.cli.app import DEFINED, is_wrong_option, tell
from holdfast.cli.catalogue import BY_NAME, FAMILIES
from holdfast.cli.exits import Exit


class _Commands(Mapping[str, Any]):
    """Name -> typer's command, built when it is first looked up."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            import_module(f"holdfast.cli.{BY_NAME[name].module}")
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(name)(DEFINED[name].call)
            self._made[name] = typer.main.get_command(alone)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in BY_NAME

    def __iter__(self) -> Iterator[str]:
        return iter(BY_NAME)

    def __len__(self) -> int:
        return len(BY_NAME)


class _ByFamily(TyperGroup):
    """Lists the commands in `--help` under their families, and reports a wrong option as JSON if `--json` was given."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**(attributes | {"commands": _Commands()}))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # Checked first: a KeyError raised inside a command's module does not mean that the command is unknown.
        if cmd_name not in self.commands:
            return None
        return self.commands[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            _hint_at_dashes(error)
            _name_the_value(error)
            raise

    def main(self, *args: Any, **options: Any) -> Any:
        given = args[0] if args else options.get("args")
        words = sys.argv[1:] if given is None else list(given)
        program.note_typed(words)
        if "--json" not in words:
            return super().main(*args, **options)
        try:
            ended = super().main(*args, **(options | {"standalone_mode": False}))
        except Exception as error:
            if not is_wrong_option(error):
                raise
            tell(error, Exit.USAGE, debug=False, as_json=True)
            ended = Exit.USAGE
        sys.exit(ended if isinstance(ended, int) else Exit.OK)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for family, names in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl([(name, BY_NAME[name].summary) for name in names])


def _hint_at_dashes(error: Exception) -> None:
    """If an unknown option looks like a number (-5), add to the error message how to pass it as a value."""
    given = getattr(error, "option_name", "")
    if is_wrong_option(error) and given.removeprefix("-")[:1].isdigit():
        error.message = f"{error.message}. If {given} is a value, put -- before it."  # type: ignore[attr-defined]


def _name_the_value(error: Exception) -> None:
    """Add the value to an error about a value that does not fit its option: some versions of typer leave it out."""
    faults = getattr(error.__cause__, "errors", None)
    if is_wrong_option(error) and callable(faults):
        given = repr(faults()[0].get("input"))
        if given not in error.message:  # type: ignore[attr-defined]
            error.message = f"{given}: {error.message}"  # type: ignore[attr-defined]


app = typer.Typer(
    cls=_ByFamily,
    help="Run workflows that can be killed at any instruction and resumed.",
    epilog=f"New here? `{program.name()} demo` kills a running workflow and resumes it. Every command has its own --help; "
    "docs/cli.md lists the exit codes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help is printed in half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        import holdfast

        print(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass
