"""The `holdfast` program: it turns functions into commands, groups them by family, and turns errors into messages and exit codes.

A command is a function decorated with `command`; it returns its exit code, or None for 0. If it raises, one message with the
remedy is printed on stderr, and a traceback only with `--debug`. Typer's own errors about wrong options are printed as JSON if
`--json` was given.

The module of a command imports the whole engine, which takes time. So the program takes the list of commands from the
`catalogue`, and imports a module and builds its command only when the command is called or its `--help` is requested.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperGroup

from holdfast import errors
from holdfast.cli import program, screen
from holdfast.cli.catalogue import BY_NAME, CARE, CHECK, EXECUTE, FAMILIES, LOOK, OPERATE, PLANS
from holdfast.cli.exits import Exit, code_of

__all__ = [
    "CARE",
    "CHECK",
    "DEFINED",
    "EXECUTE",
    "FAMILIES",
    "LOOK",
    "OPERATE",
    "PLANS",
    "app",
    "command",
    "main",
    "tell",
]

Command = TypeVar("Command", bound=Callable[..., int | None])


class Defined(NamedTuple):
    """A command whose module has been imported."""

    family: str
    call: Callable[..., None]


DEFINED: dict[str, Defined] = {}
"""Name -> command, for the modules that have been imported so far."""


def command(family: str, group: str = "") -> Callable[[Command], Command]:
    """Decorate a function to make it a command of this family, with the function's name. It must be in the `catalogue` too.
    A command of a `group` has two words: `plan check`.
    """

    def add(function: Command) -> Command:
        name = function.__name__.rstrip("_").replace("_", "-")
        DEFINED[f"{group} {name}".strip()] = Defined(family, _reported(function))
        return function

    return add


def _reported(function: Callable[..., int | None]) -> Callable[..., None]:
    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> None:
        raise typer.Exit(int(_ended(lambda: function(*args, **options), options)))

    return call


def _ended(call: Callable[[], int | None], options: dict[str, Any]) -> int:
    """Call a command and return its exit code. An error that it raises is printed."""
    debug, as_json = bool(options.get("debug")), bool(options.get("as_json"))
    code: int | None = Exit.OK
    try:
        settings = import_module("holdfast.runtime.settings")  # not at import: `--help` needs none of it
        with settings.of_one_command():
            code = call()
        sys.stdout.flush()
    except BrokenPipeError:
        screen.mute(sys.stdout)
        return int(code or Exit.OK)  # the reader closed the pipe, which does not change the exit code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except errors.HoldfastError as error:
        tell(error, code_of(error), debug=debug, as_json=as_json)
        return code_of(error)
    except typer.Exit:
        raise
    except Exception as error:
        if _is_wrong_option(error):
            raise  # a wrong option: typer prints which one, and exits with 2
        tell(error, Exit.DEFECT, debug=debug, as_json=as_json)
        return Exit.DEFECT
    return int(code or Exit.OK)


def _is_wrong_option(error: Exception) -> bool:
    """Return whether typer raised the error because of a wrong option or argument."""
    return type(error).__module__.startswith(("click", "typer"))


def tell(error: Exception, code: Exit, *, debug: bool, as_json: bool, remedies: Sequence[Any] = ()) -> None:
    """Print an error on stderr; as JSON with what can be done about it. A closed pipe is ignored."""
    with screen.unread(err=True):
        _say_error(error, code, remedies, debug=debug, as_json=as_json)


def _say_error(error: Exception, code: Exit, remedies: Sequence[Any], *, debug: bool, as_json: bool) -> None:
    wrong_option = getattr(error, "format_message", None)
    message = program.spell(str(error) if wrong_option is None else wrong_option())
    if code is Exit.DEFECT:
        message = f"{type(error).__name__}: {message}. This is a defect in Holdfast; please report it with the output of --debug."
    if debug:
        sys.stderr.write(screen.printable("".join(traceback.format_exception(error))))
    if as_json:
        said: dict[str, Any] = {"type": type(error).__name__, "message": message, "exit_code": int(code)}
        if isinstance(error, errors.PlanError):
            said["problems"] = [problem._asdict() for problem in error.problems]
        if remedies:
            said["remedies"] = remedies
        screen.say_json({"error": said}, indent=None, err=True)
    else:
        screen.say(("error: ", "bold red"), message, err=True)


# --- the program -------------------------------------------------------------------------------------


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

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        pair = " ".join(args[:2])
        if len(args) > 1 and pair in self.commands:
            return pair, self.commands[pair], args[2:]
        group = {name.partition(" ")[2]: name for name in self.commands if name.startswith(f"{args[0]} ")}
        if group:
            _say_group(ctx, args, group)
        resolved: tuple[Any, Any, list[str]] = super().resolve_command(ctx, args)
        return resolved

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
            if not _is_wrong_option(error):
                raise
            tell(error, Exit.USAGE, debug=False, as_json=True)
            ended = Exit.USAGE
        sys.exit(ended if isinstance(ended, int) else Exit.OK)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for family, names in FAMILIES.items():
            with formatter.section(family):
                formatter.write_dl([(name, BY_NAME[name].summary) for name in names])


def _say_group(ctx: Any, args: list[str], group: Mapping[str, str]) -> None:
    """Print the commands of a group for `--help`, and refuse any other word that is not one of them."""
    second = args[1] if len(args) > 1 else ""
    listed = "\n".join(
        f"  {program.name()} {name.ljust(12)}  {BY_NAME[name].summary}" for name in group.values()
    )
    if second in ("--help", "-h"):
        print(listed)
        raise typer.Exit
    what = f"'{args[0]} {second}' is not a command" if second else f"'{args[0]}' needs a second word"
    ctx.fail(f"{errors.end_sentence(what + errors.did_you_mean(second, group))} The commands are:\n{listed}")


def _hint_at_dashes(error: Exception) -> None:
    """If an unknown option looks like a number (-5), add to the error message how to pass it as a value."""
    given = getattr(error, "option_name", "")
    if _is_wrong_option(error) and given.removeprefix("-")[:1].isdigit():
        error.message = f"{error.message}. If {given} is a value, put -- before it."  # type: ignore[attr-defined]


def _name_the_value(error: Exception) -> None:
    """Add the value to an error about a value that does not fit its option: some versions of typer leave it out."""
    faults = getattr(error.__cause__, "errors", None)
    if _is_wrong_option(error) and callable(faults):
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


def main() -> None:
    """Run the `holdfast` command."""
    screen.prepare()
    program.own_process()
    app(prog_name=program.name())
