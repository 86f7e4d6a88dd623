"""Imports flows from the files that the user named on the command line or in `[tool.holdfast] flows`.

A file name that is found in a store is never imported. A file is imported once, as a module, with its folder on `sys.path` as if
Python ran it. An error in the file is reported with file and line.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from holdfast.core.graph import Flow, Graph
from holdfast.errors import GraphError, SettingError, did_you_mean
from holdfast.runtime.calls.fresh_source import spec_of
from holdfast.runtime.settings import project_file, project_table

Found: TypeAlias = "dict[str, Flow[Any] | Graph[Any]]"
"""Name of a module variable -> the flow or graph in it."""

_loaded: dict[Path, ModuleType] = {}


def load_flow(named: str) -> Flow[Any]:
    """Import the variable `flow` of `file.py:flow`, or the only flow of `file.py`. Flows that another flow of the file calls
    (`Graph.call`) do not count.
    """
    file, name = split(named)
    found = _flows_in(_module(file))
    if name is not None:
        if name not in found:
            there = f"; its flows are {_list(found)}" if found else "; it has no flow at all"
            raise SettingError(f"{file} has no flow {name!r}{there}{did_you_mean(name, found)}")
        return _compiled(found[name], file)
    meant = _meant(found, file)
    callers = _uncalled(meant)
    if len(callers) == 1:
        return _compiled(callers[0], file)
    raise SettingError(
        f"{file} defines {len(meant)} flows: {_list(meant)}. Choose one, as in {file}:{next(iter(meant))}"
    )


def _meant(found: Found, file: str) -> Found:
    """Return each flow of a file once, by its first name. Graphs count only if the file has no compiled flow."""
    if not found:
        raise SettingError(f"{file} defines no flow. Add one at module level: flow = graph.compile()")
    compiled: Found = {name: value for name, value in found.items() if isinstance(value, Flow)}
    by_value: dict[int, str] = {}
    for name, value in (compiled or found).items():
        by_value.setdefault(id(value), name)
    return {name: found[name] for name in by_value.values()}


def _uncalled(meant: Found) -> list[Flow[Any] | Graph[Any]]:
    """Return the flows that no other one of these calls."""
    called = {id(one) for value in meant.values() if isinstance(value, Flow) for one in value.called}
    return [value for value in meant.values() if id(value) not in called]


def neighbours(named: str | None) -> list[Flow[Any]]:
    """Return the compiled flows of the same file, or of the project if no file is named: nodes of a flow may call them."""
    if named is None:
        return project_flows(all_of_them=True)
    return [value for value in _flows_in(_module(split(named)[0])).values() if isinstance(value, Flow)]


def _flows_of(named: str, wanted: str | None) -> list[Flow[Any]]:
    """Return the flow of `file.py:flow`; for `file.py`, the flow whose name is `wanted`, or all flows if none has that name."""
    file, name = split(named)
    if wanted is None or name is not None:
        return [load_flow(named)]
    found = _flows_in(_module(file))
    meant = _meant(found, file)
    if len(meant) == 1:
        return [load_flow(named)]
    called = {key: value for key, value in meant.items() if value.name == wanted}
    if len(called) > 1:
        raise SettingError(
            f"{file} defines {len(called)} flows with the name {wanted!r}: {_list(called)}. Choose one, as in "
            f"{file}:{next(iter(called))}"
        )
    unfinished = [value for value in found.values() if value.name == wanted]
    if called or unfinished:
        return [_compiled(next(iter([*called.values(), *unfinished])), file)]
    return [value for value in meant.values() if isinstance(value, Flow)]


def flows_in(named: str) -> list[Flow[Any]]:
    """Return the flow of `file.py:flow`, or every flow of `file.py`."""
    file, name = split(named)
    if name is not None:
        return [load_flow(named)]
    return [_compiled(value, file) for value in _meant(_flows_in(_module(file)), file).values()]


def _list(found: Iterable[str]) -> str:
    return ", ".join(map(repr, found))


def flows_for(file: str | None, wanted: str | None = None) -> list[Flow[Any]]:
    """Return the flows that a command may execute: those of the given file, or else of the project. If a file has several flows,
    the one with the name `wanted` is chosen.
    """
    return _flows_of(file, wanted) if file is not None else project_flows(wanted)


def project_flows(wanted: str | None = None, *, all_of_them: bool = False) -> list[Flow[Any]]:
    """Return the flows of `[tool.holdfast] flows` in the nearest pyproject.toml. Paths are relative to that file."""
    listed = project_table().get("flows", [])
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise SettingError(
            '[tool.holdfast] flows in pyproject.toml must be a list of files, as in ["report.py:flow"]'
        )
    folder = project_file().parent
    files = [os.path.relpath(folder / entry) for entry in listed]
    return [flow for file in files for flow in (flows_in(file) if all_of_them else _flows_of(file, wanted))]


def absolute(named: str) -> str:
    """Return `file.py` or `file.py:flow` with the absolute path of the file."""
    file, name = split(named)
    return os.path.abspath(file) + (f":{name}" if name is not None else "")


def has_project_flows() -> bool:
    """Return whether pyproject.toml lists flows, so that commands need no file."""
    try:
        return bool(project_table().get("flows"))
    except SettingError:
        return False


def load_function(named: str, option: str) -> Callable[[Any], Any]:
    """Import the function of `file.py:function`, for this option."""
    file, name = split(named)
    if name is None:
        raise SettingError(f"{option} {named}: name the function too, as in {file}:check")
    module = _module(file)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SettingError(f"{option}: {file} has no function {name!r}{did_you_mean(name, known)}")
    return function  # type: ignore[no-any-return]


def split(named: str) -> tuple[str, str | None]:
    """Split `"file.py:flow"` into file and name; the name is None if there is none."""
    file, colon, name = named.rpartition(":")
    return (file, name) if colon and name.isidentifier() and not os.path.exists(named) else (named, None)


def _flows_in(module: ModuleType) -> Found:
    return {name: value for name, value in vars(module).items() if isinstance(value, (Flow, Graph))}


def _compiled(found: Flow[Any] | Graph[Any], file: str) -> Flow[Any]:
    if isinstance(found, Flow):
        return found
    try:
        return found.compile()
    except GraphError as fault:
        raise GraphError(f"{found.name} of {file}", fault.problems) from fault


# --- importing ---------------------------------------------------------------------------------------


def _module(file: str) -> ModuleType:
    path = Path(file).resolve()
    if path in _loaded:
        return _loaded[path]
    if not file:
        raise SettingError(
            "the name of the flow file is empty. Name the Python file that defines the flow, as in report.py"
        )
    if not path.is_file():
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.py")])
        what = "is a folder" if path.is_dir() else "does not exist"
        raise SettingError(f"the flow file {file} {what}. Name the Python file that defines the flow{near}")
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"flow_file_{len(_loaded)}"
    )
    spec = spec_of(name, str(path))
    if spec is None or spec.loader is None:
        raise SettingError(f"the flow file {file} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        del sys.modules[name]
        raise SettingError(_told(file, path, raised)) from raised
    _loaded[path] = module
    return module


def _told(file: str, path: Path, raised: BaseException) -> str:
    """Return the message for an error that a file raised while it was imported, with file and line."""
    if isinstance(raised, SyntaxError):
        where = os.path.relpath(raised.filename) if raised.filename else file
        line = f"\n    {raised.text.strip()}" if raised.text else ""
        return f"{where}:{raised.lineno}: {raised.msg}{line}\nPython cannot read this file; correct it and try again."
    frames = traceback.extract_tb(raised.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    where = f"{file}:{own[-1].lineno}" if own else file
    if isinstance(raised, SystemExit):
        return f"{where}: the file exits ({raised!r}) when it is imported. Put that code under if __name__ == '__main__':"
    if isinstance(raised, GraphError):
        return f"{where}: {raised}"
    if isinstance(raised, (UnicodeDecodeError, ValueError)) and not own:
        return f"{file} cannot be read as Python: {raised}"
    return f"{where}: {type(raised).__name__}: {raised}\nThe file could not be imported; --debug shows the traceback."
