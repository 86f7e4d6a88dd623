"""The command line as a whole: its commands by family, each of which is imported when it is called and not before.

A command's module brings the engine with it, so the group knows its commands from the `catalogue` and makes one when it is called
or asked for its own `--help`. How a command ends is not decided here, but in `app`; only what typer itself finds wrong with the
words that were typed is printed here, in JSON where that was asked for.
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
    """Name -> typer's command, made when it is first taken out."""

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
    """Lists the commands under the heads of their families, and tells a program of a wrong option in JSON."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**(attributes | {"commands": _Commands()}))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # asked first: a KeyError from inside a command's module is not an unknown command
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
        words = args[0] if args else options.get("args")
        if "--json" not in (sys.argv[1:] if words is None else words):
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
                formatter.write_dl([(name, BY_NAME[name].told) for name in names])


def _hint_at_dashes(error: Exception) -> None:
    """What looks like an option and is a number is a value: say how it is given."""
    given = getattr(error, "option_name", "")
    if is_wrong_option(error) and given.removeprefix("-")[:1].isdigit():
        error.message = f"{error.message}. If it is a value, put -- before it."  # type: ignore[attr-defined]


def _name_the_value(error: Exception) -> None:
    """Where a value does not fit its option, some versions of typer keep to themselves which value."""
    faults = getattr(error.__cause__, "errors", None)
    if is_wrong_option(error) and callable(faults):
        given = repr(faults()[0].get("input"))
        if given not in error.message:  # type: ignore[attr-defined]
            error.message = f"{given}: {error.message}"  # type: ignore[attr-defined]


app = typer.Typer(
    cls=_ByFamily,
    help="Workflows that can be killed at any instruction and resume.",
    epilog=f"New here? `{program.name()} demo` kills a workflow in the middle and resumes it. Every command explains itself "
    "with --help; docs/cli.md has the exit codes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: it is there in half the time
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
