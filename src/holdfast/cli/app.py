"""Turns functions into commands, and errors into messages and exit codes.

A command is a function decorated with `command`; it returns its exit code, or None for 0. If it raises, one message with the
remedy is printed on stderr, and a traceback only with `--debug`. `commands` makes one program of all commands.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import typer

from holdfast import errors
from holdfast.cli import program, screen
from holdfast.cli.catalogue import CARE, CHECK, EXECUTE, FAMILIES, LOOK, OPERATE
from holdfast.cli.exits import Exit, code_of

__all__ = [
    "CARE",
    "CHECK",
    "DEFINED",
    "EXECUTE",
    "FAMILIES",
    "LOOK",
    "OPERATE",
    "command",
    "is_wrong_option",
    "tell",
]

Command = TypeVar("Command", bound=Callable[..., int | None])


class Defined(NamedTuple):
    """A command whose module has been imported."""

    family: str
    call: Callable[..., None]


DEFINED: dict[str, Defined] = {}
"""Name -> command, for the modules that have been imported so far."""


def command(family: str) -> Callable[[Command], Command]:
    """Decorate a function to make it a command of this family, with the function's name. It must be in the `catalogue` too."""

    def add(function: Command) -> Command:
        name = function.__name__.rstrip("_").replace("_", "-")
        DEFINED[name] = Defined(family, _reported(function))
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
        if is_wrong_option(error):
            raise  # a wrong option: typer prints which one, and exits with 2
        tell(error, Exit.DEFECT, debug=debug, as_json=as_json)
        return Exit.DEFECT
    return int(code or Exit.OK)


def is_wrong_option(error: Exception) -> bool:
    """Return whether typer raised the error because of a wrong option or argument."""
    return type(error).__module__.startswith(("click", "typer"))


def tell(error: Exception, code: Exit, *, debug: bool, as_json: bool) -> None:
    """Print an error and its remedy on stderr. A closed pipe is ignored."""
    with screen.unread(err=True):
        _say_error(error, code, debug=debug, as_json=as_json)


def _say_error(error: Exception, code: Exit, *, debug: bool, as_json: bool) -> None:
    wrong_option = getattr(error, "format_message", None)
    message = program.spell(str(error) if wrong_option is None else wrong_option())
    if code is Exit.DEFECT:
        message = f"{type(error).__name__}: {message}. This is a defect in Holdfast; please report it with the output of --debug."
    if debug:
        sys.stderr.write(screen.printable("".join(traceback.format_exception(error))))
    if as_json:
        said = {"type": type(error).__name__, "message": message, "exit_code": int(code)}
        screen.say_json({"error": said}, indent=None, err=True)
    else:
        screen.say(("error: ", "bold red"), message, err=True)
