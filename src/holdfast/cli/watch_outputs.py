"""Where `holdfast watch` shows what it watches: on the screen of a terminal, or in lines or JSON documents for each change."""

from __future__ import annotations

import os
import signal
import sys
import termios
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from holdfast.cli import screen
from holdfast.cli.watch_frames import Line, Viewport
from holdfast.core.drawing import in_ascii

FRAME_S = 0.25
"""How often the screen is painted at most."""


class Watched(ABC):
    """A list of runs, or one run: what to show of it, and when it is over."""

    at = 0.0
    """The store's time at the last look."""
    shortest_s = FRAME_S
    """How many seconds are between two looks at least."""
    is_behind = False
    """True if there is more to read at once."""
    code: int | None = None
    """The exit code, once there is nothing more to watch."""

    @abstractmethod
    def look(self, now: float, size: tuple[int, int]) -> bool:
        """Read the facts, for a screen of this width and height, and return whether something has changed."""

    @abstractmethod
    def frame(self, view: Viewport) -> list[Line]:
        """Return the screen."""

    @abstractmethod
    def news(self) -> list[Line]:
        """Return a line for each change since the last call."""

    @abstractmethod
    def documents(self) -> list[dict[str, Any]]:
        """Return a JSON document for each change since the last call."""

    @abstractmethod
    def say_end(self, *, whole: bool) -> None:
        """Print that there is nothing more to watch; with `whole`, what was shown last."""

    @abstractmethod
    def say_farewell(self) -> None:
        """Print what a person who stops watching should know."""


class Output(ABC):
    """Where what is watched is shown."""

    size = (0, 0)
    """Width and height of the screen; zero if there is none."""

    @abstractmethod
    def show(self, watched: Watched, now: float, trouble: str) -> None:
        """Show what is watched, a few times a second. `trouble`: why the store does not answer."""

    def tell(self, watched: Watched) -> None:  # noqa: B027 - only what is not a screen tells changes
        """Print what the look that has just ended has found."""

    @abstractmethod
    def end(self, watched: Watched) -> None:
        """Show that there is nothing more to watch."""

    def close(self) -> None:  # noqa: B027 - only a screen has something to restore
        """Restore the terminal."""


def choose_output(*, as_json: bool) -> Output:
    """Return the output for this command: a screen, if stdout is a terminal that can show one."""
    if as_json:
        return JsonOutput()
    is_screen = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return ScreenOutput() if is_screen else LineOutput()


class ScreenOutput(Output):
    """The alternate screen of a terminal. The terminal is as before when it is closed, and while Ctrl-Z stops the command. Keys
    have no effect, except those that send signals.
    """

    def __init__(self) -> None:
        self._console = screen.console()
        self._live: Any = None
        self._stack = ExitStack()
        self._shown: Any = None
        self._is_to_stop = False

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        return self._console.size.width, self._console.size.height

    def show(self, watched: Watched, now: float, trouble: str) -> None:
        if self._is_to_stop:
            self._stop()
        width, height = self.size
        lines = watched.frame(Viewport(width=width, height=height, now=now, trouble=trouble))
        if (lines, width, height) == self._shown or (watched.code is not None and self._live is None):
            return
        self._shown = (lines, width, height)
        self._open().update(_painted(lines), refresh=True)

    def _open(self) -> Any:
        if self._live is None:
            from rich.live import Live

            self._stack.enter_context(_without_echo())
            before = signal.signal(signal.SIGTSTP, self._note_stop)
            self._stack.callback(signal.signal, signal.SIGTSTP, before)
            # Warnings on stderr must not be left on the screen; stdout stays as it is, because it says what it can show.
            self._live = Live(console=self._console, screen=True, auto_refresh=False, redirect_stdout=False)
            self._stack.enter_context(self._live)
        return self._live

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self._is_to_stop = True

    def _stop(self) -> None:
        """Leave the terminal to the shell until the command continues."""
        self.close()
        os.kill(os.getpid(), signal.SIGTSTP)
        self._is_to_stop = False

    def end(self, watched: Watched) -> None:
        self.close()
        watched.say_end(whole=True)

    def close(self) -> None:
        self._stack.close()
        self._live = self._shown = None


@contextmanager
def _without_echo() -> Iterator[None]:
    """During the block, do not show typed keys, and then forget them: the shell must not take them for a command."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)


def _painted(lines: list[Line]) -> Any:
    from rich.text import Text

    painted = Text("\n").join(screen.text(*as_shown(line)) for line in lines)
    painted.no_wrap, painted.overflow = True, "crop"
    return painted


def as_shown(line: Line) -> Line:
    """Return a line as the output can show it."""
    if not screen.ascii_only():
        return line
    return [(in_ascii(part[0]), part[1]) if isinstance(part, tuple) else in_ascii(part) for part in line]


class LineOutput(Output):
    """A pipe or a file: one line for each change."""

    def __init__(self) -> None:
        self._is_away = False

    def tell(self, watched: Watched) -> None:
        for line in watched.news():
            screen.say(*as_shown(line))
        sys.stdout.flush()  # a reader of a pipe sees it now, or has closed the pipe

    def show(self, watched: Watched, now: float, trouble: str) -> None:
        if bool(trouble) != self._is_away:
            self._is_away = bool(trouble)
            screen.say(("warning: ", "yellow"), trouble or "the store answers again", err=True)

    def end(self, watched: Watched) -> None:
        watched.say_end(whole=False)


class JsonOutput(LineOutput):
    """One JSON document on a line for each change."""

    def tell(self, watched: Watched) -> None:
        for document in watched.documents():
            screen.say_json(document, indent=None)

    def end(self, watched: Watched) -> None:
        """Print nothing: the last document says it."""
