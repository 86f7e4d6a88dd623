"""Finds the line of the user's own code in which a failure happened, in the recorded traceback.

The traceback of a failure is stored as text, without the frames of Holdfast. The user's own code is every file that is neither
in the standard library nor in an installed package. If a traceback has no frame of such a file, because the flow itself is an
installed package, its last frame counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from holdfast.core.events import Failure
from holdfast.reading import text

_FRAME = re.compile(r'^[ |+]*File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_FRAME_BEGINS = 'File "'
_MARKS = re.compile(r"^[ |+]*")
_FOREIGN = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\][Ll]ib(?:64)?[/\\]python3\.\d+t?[/\\]|^<frozen "
)
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_SOURCE_MAX = 200
_MESSAGE_KEY = 1000
"""As many characters of a message are enough to find it in the traceback, where a long one is cut."""


class CodePlace(msgspec.Struct, frozen=True):
    """A line of code: file, line number, function, and the text of the line."""

    file: str
    line: int
    function: str = ""
    source: str = ""
    """The text of the line; empty if the file could not be read."""

    def __str__(self) -> str:
        return self._described(self.file)

    def seen_from(self, folder: str) -> str:
        """Describe the place in one line. The path is relative to this folder if the file is inside the folder."""
        inside = self.file.startswith(folder.rstrip(os.sep) + os.sep)
        return self._described(os.path.relpath(self.file, folder) if inside else self.file)

    def _described(self, file: str) -> str:
        function = f", in {self.function}" if self.function else ""
        source = f": {self.source}" if self.source else ""
        return text.one_line(f"{file}:{self.line}{function}{source}")


def place_of(failure: Failure | None) -> CodePlace | None:
    """Return the last line of the user's own code in the traceback of a failure; None if no frame is recorded."""
    if failure is None or not failure.traceback:
        return None
    whole = failure.traceback
    if (
        _FRAME_BEGINS in failure.message
    ):  # such as the traceback of a subprocess: not frames of this exception
        begins = whole.rfind(f"{failure.type}: {failure.message[:_MESSAGE_KEY]}")
        whole = whole[:begins] if begins > 0 else whole
    last = whole[max(whole.rfind(link) for link in _LINKS) + 1 :]  # the exception itself, not its causes
    for part in (last, whole):
        frames = list(frames_of(part))
        own = [frame for frame in frames if not is_foreign(frame.file)]
        if own:
            return own[-1]
    return frames[-1] if frames else None


def is_foreign(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    return bool(_FOREIGN.search(file)) or file.startswith(_LIBRARY)


def frames_of(trace: str) -> Iterator[CodePlace]:
    """Yield the lines of code in a traceback, outermost first."""
    lines = trace.splitlines()
    for number, line in enumerate(lines):
        found = _FRAME.match(line)
        if found is None:
            continue
        after = lines[number + 1] if number + 1 < len(lines) else ""
        is_source = after.startswith(line[: line.index("File")] + "  ") and _FRAME.match(after) is None
        source = _MARKS.sub("", after).strip() if is_source else ""
        yield CodePlace(
            found["file"], int(found["line"]), found["function"] or "", text.one_line(source, _SOURCE_MAX)
        )
