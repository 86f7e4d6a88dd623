"""Loading Python files by their path, always from the source and never from cached bytecode.

Python uses the cached bytecode of a file as long as the file has the same size and was changed in the same second. A flow that
was edited and run at once could then run as it was before the edit.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType


def spec_of(name: str, path: str) -> ModuleSpec | None:
    """Return the spec that loads this file as a module of this name; None if it is not a Python file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = _UncachedLoader(name, path)
    return spec


class _UncachedLoader(SourceFileLoader):
    """Compiles the source file each time, as Python does with the main program."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
