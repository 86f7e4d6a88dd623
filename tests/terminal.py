"""A terminal for tests: a program runs in it, and a test reads what the screen shows.

It knows the control sequences that Rich uses, and fails on others, so that a test sees if a program sends something else.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from unicodedata import east_asian_width

import pytest

import forked

PATIENCE_S = 60
_SEQUENCE = re.compile(r"\x1b\[(\?[0-9]+[hl]|[0-9;]*[A-Za-z])|\r|\n|\x1b|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CUT = re.compile(r"\x1b(?:\[[?0-9;]*)?(?=\x1b)")
"""A sequence in which a signal has interrupted the program. A terminal drops it when the next one begins."""


class Screen:
    """The cells of a terminal, and its modes."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.is_alternate = False
        self.has_cursor = True
        self.entered = 0
        """How often the alternate screen was entered."""
        self.colours: set[str] = set()
        """The parameters of all colours and styles that were set."""
        self.paints = 0
        """How often the cursor was moved home."""
        self._main: list[list[str]] = [[]]
        """The lines of the main screen, with those that were scrolled away."""
        self._other: list[list[str]] = []
        self._row = self._column = 0
        self._rest = ""
        self._old_paints = 0
        """How many paints may still have the size that the screen had before."""

    @property
    def text(self) -> str:
        """What is shown now; on the main screen, also what was shown before."""
        lines = self._other if self.is_alternate else self._main
        return "\n".join("".join(line).rstrip() for line in lines)

    def write(self, data: str) -> None:
        data, self._rest = _CUT.sub("", self._rest + data), ""
        cut = data.rfind("\x1b", max(0, len(data) - 12))
        if cut >= 0 and not _SEQUENCE.match(data, cut).group(1):  # type: ignore[union-attr]
            data, self._rest = data[:cut], data[cut:]
        at = 0
        for found in _SEQUENCE.finditer(data):
            self._put(data[at : found.start()])
            self._obey(found)
            at = found.end()
        self._put(data[at:])

    def _put(self, words: str) -> None:
        for char in words:
            line = self._line()
            width = 2 if east_asian_width(char) in "WF" else 1
            assert self._column + width <= self.columns or not self._is_strict, "a line is too wide"
            line += [" "] * (self._column + width - len(line))
            line[self._column : self._column + width] = [char, *[""] * (width - 1)]
            self._column += width

    @property
    def _is_strict(self) -> bool:
        return self.is_alternate and not self._old_paints

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows, self._old_paints = columns, rows, 2

    def _line(self) -> list[str]:
        lines = self._other if self.is_alternate else self._main
        lines += [[] for _ in range(self._row + 1 - len(lines))]
        assert len(lines) <= self.rows or not self._is_strict, "the screen scrolls"
        return lines[self._row]

    def _obey(self, found: re.Match[str]) -> None:
        match found[0], found[1]:
            case "\r", _:
                self._column = 0
            case "\n", _:
                self._row += 1
            case _, None:
                raise AssertionError(f"a control character: {found[0]!r}")
            case _, "?1049h":
                self._other, self.is_alternate, self._row, self._column = [], True, 0, 0
                self.entered += 1
            case _, "?1049l":
                self.is_alternate, self._row, self._column = False, len(self._main) - 1, 0
            case _, "?25h" | "?25l":
                self.has_cursor = found[1] == "?25h"
            case _, "H":
                self._row = self._column = 0
                self.paints += 1
                self._old_paints = max(0, self._old_paints - 1)
                self._other = [line[: self.columns] for line in self._other[: self.rows]]
            case _, str(words) if words.endswith("m"):
                self.colours.add(words[:-1])
            case _:
                raise AssertionError(f"an unknown control sequence: {found[0]!r}")


class Terminal:
    """A program that runs in a terminal."""

    def __init__(
        self, words: Sequence[str], *, columns: int = 80, rows: int = 24, env: Mapping[str, str], cwd: str
    ) -> None:
        self.screen = Screen(columns, rows)
        try:
            self._master, slave = os.openpty()
        except OSError as fault:  # as in a chroot
            pytest.skip(
                f"no terminal can be opened here ({fault.strerror}): mount devpts at /dev/pts to run this test"
            )
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._before = termios.tcgetattr(slave)
        self._slave = slave
        clean = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = forked.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**clean, "TERM": "xterm-256color"},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=forked.take_terminal,
        )

    def until(self, *wanted: str, without: str = "\0", where: Callable[[str], bool] | None = None) -> str:
        """Read until the screen shows all of these texts, and not the other one. Returns what it shows."""
        deadline = time.monotonic() + PATIENCE_S
        while not (
            all(words in self.screen.text for words in wanted)
            and without not in self.screen.text
            and (where is None or where(self.screen.text))
        ):
            assert time.monotonic() < deadline, f"{wanted} not in:\n{self.screen.text}"
            assert self._read(1.0) or self.process.poll() is None, f"{wanted} not in:\n{self.screen.text}"
        return self.screen.text

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return False
        data = os.read(self._master, 65536)
        self.screen.write(data.decode("utf-8", "ignore"))
        return bool(data)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.killpg(self.process.pid, signal.SIGWINCH)

    def ended(self) -> int:
        """Wait for the program, and return its exit code. The terminal must be as it was before."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.screen.text
            self._read(0.1)
        while self._read(0.0):
            pass
        assert not self.screen.is_alternate
        assert self.screen.has_cursor
        assert termios.tcgetattr(self._slave) == self._before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)
