"""Python files that are loaded by their path: always as they stand.

Python takes bytecode that it kept of a file for the file as long as that has the same size and the same second of change. A flow
that was edited and run at once would be what it was before.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType


def spec_of(name: str, path: str) -> ModuleSpec | None:
    """How to load that file as a module of that name; None: it is no Python file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = _UncachedLoader(name, path)
    return spec


class _UncachedLoader(SourceFileLoader):
    """Reads the file itself, as Python does with a program."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
