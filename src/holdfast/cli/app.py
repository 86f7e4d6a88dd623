"""The command line as a whole: its commands by family, and the one place where an error becomes a message and an exit code.

A command is a function decorated with `command`; it returns its exit code, or None for 0. Whatever it raises ends here: one
message on stderr that names the way out, and no traceback unless `--debug` was given.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from holdfast import errors
from holdfast.cli import program, screen
from holdfast.cli.exits import Exit, code_of

Command = TypeVar("Command", bound=Callable[..., int | None])

EXECUTE, OPERATE, LOOK, CHECK = "Execute a run", "Operate a run", "Look at runs", "Check"
FAMILIES: dict[str, list[str]] = {EXECUTE: [], OPERATE: [], LOOK: [], CHECK: []}
"""Family -> the names of its commands, in the order they are listed."""


class _ByFamily(TyperGroup):
    """Lists the commands under the heads of their families, and tells a program of a wrong option in JSON."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            _hint_at_dashes(error)
            raise

    def main(self, *args: Any, **options: Any) -> Any:
        words = args[0] if args else options.get("args")
        if "--json" not in (sys.argv[1:] if words is None else words):
            return super().main(*args, **options)
        try:
            ended = super().main(*args, **(options | {"standalone_mode": False}))
        except Exception as error:
            if not _is_wrong_option(error):
                raise
            tell(error, Exit.USAGE, debug=False, as_json=True)
            ended = Exit.USAGE
        sys.exit(ended if isinstance(ended, int) else Exit.OK)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for family, names in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(70)) for name in names])


app = typer.Typer(
    cls=_ByFamily,
    help="Workflows that can be killed at any instruction and carry on.",
    epilog=f"New here? `{program.name()} demo` kills a workflow in the middle and carries it on. Every command explains itself "
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
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    pass


def command(family: str) -> Callable[[Command], Command]:
    """Make a function a command of this family, under its own name."""

    def add(function: Command) -> Command:
        name = function.__name__.rstrip("_").replace("_", "-")
        FAMILIES[family].append(name)
        app.command(name)(_reported(function))
        return function

    return add


def _reported(function: Callable[..., int | None]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> None:
        raise typer.Exit(int(_ended(lambda: function(*args, **options), options)))

    return call


def _ended(call: Callable[[], int | None], options: dict[str, Any]) -> int:
    """The exit code of a call; what it raised has been told."""
    debug, as_json = bool(options.get("debug")), bool(options.get("as_json"))
    code: int | None = Exit.OK
    try:
        code = call()
        sys.stdout.flush()
    except BrokenPipeError:
        screen.mute(sys.stdout)
        return int(code or Exit.OK)  # nobody reads on; whoever asks for the exit code still gets it
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except errors.HoldfastError as error:
        tell(error, code_of(error), debug=debug, as_json=as_json)
        return code_of(error)
    except typer.Exit:
        raise
    except Exception as error:
        if _is_wrong_option(error):
            raise  # a wrong option: typer says which, and leaves with 2
        tell(error, Exit.DEFECT, debug=debug, as_json=as_json)
        return Exit.DEFECT
    return int(code or Exit.OK)


def _is_wrong_option(error: Exception) -> bool:
    """Whether an error is typer's own, about what was typed."""
    return type(error).__module__.startswith(("click", "typer"))


def _hint_at_dashes(error: Exception) -> None:
    """What looks like an option and is a number is a value: say how it is given."""
    given = getattr(error, "option_name", "")
    if _is_wrong_option(error) and given.removeprefix("-")[:1].isdigit():
        error.message = f"{error.message}. If it is a value, put -- before it."  # type: ignore[attr-defined]


def tell(error: Exception, code: Exit, *, debug: bool, as_json: bool) -> None:
    """Say on stderr what went wrong and what to do. That nobody reads it changes nothing."""
    with screen.unread(err=True):
        _say_error(error, code, debug=debug, as_json=as_json)


def _say_error(error: Exception, code: Exit, *, debug: bool, as_json: bool) -> None:
    wrong_option = getattr(error, "format_message", None)
    message = program.spelled(str(error) if wrong_option is None else wrong_option())
    if code is Exit.DEFECT:
        message = f"{type(error).__name__}: {message}. This is a defect in Holdfast; please report it with the output of --debug."
    if debug:
        sys.stderr.write(screen.printable("".join(traceback.format_exception(error))))
    if as_json:
        told = {"type": type(error).__name__, "message": message, "exit_code": int(code)}
        screen.say_json({"error": told}, indent=None, err=True)
    else:
        screen.say(("error: ", "bold red"), message, err=True)
