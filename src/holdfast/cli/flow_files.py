"""Imports flows, and capabilities for plans, from the files that the user named on the command line or in
`[tool.holdfast] flows`.

A file name that is found in a store is never imported. A file is imported once, as a module, with its folder on `sys.path` as if
Python ran it. An error in the file is reported with file and line.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from holdfast.cli import program
from holdfast.core.graph import Flow, Graph
from holdfast.errors import GraphError, SettingError, did_you_mean
from holdfast.runtime.calls.fresh_source import spec_of
from holdfast.runtime.resources import Resources, open_resources
from holdfast.runtime.settings import project_file, project_table

if TYPE_CHECKING:
    from holdfast.plan import Capabilities

Found: TypeAlias = "dict[str, Flow[Any] | Graph[Any] | Capabilities]"
"""Name of a module variable -> the flow, graph or capabilities in it."""
AnyFlow: TypeAlias = "Flow[Any] | Capabilities"
"""What an engine is given: a flow, or capabilities, which make the flows of plans."""

_loaded: dict[Path, ModuleType] = {}


def load_flow(named: str, with_plan: str = "plan run PLAN") -> Flow[Any]:
    """Import the variable `flow` of `file.py:flow`, or the only flow of `file.py`. Flows that another flow of the file calls
    (`Graph.call`) do not count, and neither do capabilities: `with_plan` are the words of the command that takes these.
    """
    file, name = split(named)
    found = _flows_in(_module(file))
    flows: Found = {key: value for key, value in found.items() if not is_capabilities(value)}
    if (name is None and found and not flows) or is_capabilities(found.get(name or "")):
        raise SettingError(_name_a_plan(file, name, list(found), with_plan, has_flows=bool(flows)))
    flow = _compiled(_choose(flows, file, name), file)
    assert isinstance(flow, Flow)
    return flow


def _name_a_plan(file: str, name: str | None, found: list[str], with_plan: str, *, has_flows: bool) -> str:
    """Return the message for capabilities that were named in place of a flow."""
    chosen = name or found[0]
    words, *more = with_plan.split(" -", 1)
    named = file if len(found) == 1 else f"{file}:{chosen}"
    line = " ".join([program.name(), words, shlex.quote(named), *(f"-{option}" for option in more)])
    what = f"{chosen!r} of {file} is not a flow" if has_flows else f"{file} defines no flow"
    return f"{what}, but capabilities, which plans call. Name a plan, in a JSON or YAML file, too: `{line}`"


def load_capabilities(named: str | None) -> Capabilities:
    """Import the variable `shop` of `file.py:shop`, the only capabilities of `file.py` or, without a file, those of the
    project.
    """
    if named is None:
        return _project_capabilities()
    file, name = split(named)
    found = _flows_in(_module(file))
    here = {key: value for key, value in found.items() if is_capabilities(value)}
    meant = {key: value for key, value in here.items() if name in (None, key)}
    if not here:
        raise SettingError(
            f"{file} defines no capabilities, which a plan needs. Add them at module level: "
            f"""shop = plan.Capabilities("shop"), and a function with @shop.capability("name@1")"""
        )
    if not meant:
        assert name is not None
        raise SettingError(
            f"{file} has no capabilities {name!r}; it has {_list(here)}{did_you_mean(name, here)}"
        )
    if len({id(value) for value in meant.values()}) > 1:
        raise SettingError(
            f"{file} defines several capabilities: {_list(meant)}. Choose one, as in {file}:{next(iter(meant))}"
        )
    return next(iter(meant.values()))


def _project_capabilities() -> Capabilities:
    here = {id(one): one for one in project_flows(all_of_them=True) if is_capabilities(one)}
    if len(here) == 1:
        return next(iter(here.values()))
    again = f"{program.name()} {shlex.join([*program.typed(), 'FILE.py'])}"
    if not here:
        raise SettingError(
            f"a plan needs the file that defines the capabilities. Name it: `{again}`; or list it in pyproject.toml: "
            '[tool.holdfast] flows = ["FILE.py"].'
        )
    raise SettingError(
        f"the project defines several capabilities: {_list(one.name for one in here.values())}. Name the file of those that "
        f"the plan needs: `{again}`"
    )


def is_capabilities(value: object) -> TypeGuard[Capabilities]:
    """Return whether a value is a `plan.Capabilities`. Only a file that has one imports `holdfast.plan`, which takes time."""
    module = sys.modules.get("holdfast.plan.capabilities")
    return module is not None and isinstance(value, module.Capabilities)


def _load(named: str) -> AnyFlow:
    """Import the flow or the capabilities of `file.py:name`, or the only ones of `file.py`."""
    file, name = split(named)
    return _compiled(_choose(_flows_in(_module(file)), file, name), file)


def _choose(found: Found, file: str, name: str | None) -> Flow[Any] | Graph[Any] | Capabilities:
    if name is not None:
        if name not in found:
            there = f"; its flows are {_list(_meant(found, file))}" if found else "; it has no flow at all"
            raise SettingError(f"{file} has no flow {name!r}{there}{did_you_mean(name, found)}")
        return found[name]
    meant = _meant(found, file)
    callers = _uncalled(meant)
    if len(callers) == 1:
        return callers[0]
    raise SettingError(
        f"{file} defines {len(meant)} flows: {_list(meant)}. Choose one, as in {file}:{next(iter(meant))}"
    )


def _meant(found: Found, file: str) -> Found:
    """Return each flow of a file once, by its first name. Graphs count only if the file has no compiled flow and no
    capabilities, and plans only if it does not have their capabilities.
    """
    if not found:
        raise SettingError(f"{file} defines no flow. Add one at module level: flow = graph.compile()")
    compiled: Found = {name: value for name, value in found.items() if not isinstance(value, Graph)}
    there = {id(value) for value in compiled.values()}
    by_value: dict[int, str] = {}
    for name, value in (compiled or found).items():
        if not (isinstance(value, Flow) and value.source is not None and id(value.source) in there):
            by_value.setdefault(id(value), name)
    return {name: found[name] for name in by_value.values()}


def _uncalled(meant: Found) -> list[Flow[Any] | Graph[Any] | Capabilities]:
    """Return the flows that no other one of these calls."""
    called = {id(one) for value in meant.values() if isinstance(value, Flow) for one in value.called}
    return [value for value in meant.values() if id(value) not in called]


def neighbours(named: str | None) -> list[AnyFlow]:
    """Return the compiled flows of the same file, or of the project if no file is named: nodes of a flow may call them."""
    if named is None:
        return project_flows(all_of_them=True)
    found = _flows_in(_module(split(named)[0])).values()
    return [value for value in found if not isinstance(value, Graph)]


def _flows_of(named: str, wanted: str | None) -> list[AnyFlow]:
    """Return the flow of `file.py:flow`; for `file.py`, the flow whose name is `wanted`, or all flows if none has that name."""
    file, name = split(named)
    if wanted is None or name is not None:
        return [_load(named)]
    found = _flows_in(_module(file))
    meant = _meant(found, file)
    if len(meant) == 1:
        return [_load(named)]
    called = {key: value for key, value in meant.items() if value.name == wanted}
    if len(called) > 1:
        raise SettingError(
            f"{file} defines {len(called)} flows with the name {wanted!r}: {_list(called)}. Choose one, as in "
            f"{file}:{next(iter(called))}"
        )
    unfinished = [value for value in found.values() if value.name == wanted]
    if called or unfinished:
        return [_compiled(next(iter([*called.values(), *unfinished])), file)]
    return [value for value in meant.values() if not isinstance(value, Graph)]


def flows_in(named: str) -> list[AnyFlow]:
    """Return the flow of `file.py:flow`, or every flow of `file.py`."""
    file, name = split(named)
    if name is not None:
        return [_load(named)]
    return [_compiled(value, file) for value in _meant(_flows_in(_module(file)), file).values()]


def _list(found: Iterable[str]) -> str:
    return ", ".join(map(repr, found))


def by_flow(files: Iterable[str]) -> dict[str, str]:
    """Return for each flow in these files the file, so that child runs of a worker are recorded with it."""
    return {flow.name: absolute(split(file)[0]) for file in files for flow in flows_in(file)}


def flows_for(file: str | None, wanted: str | None = None) -> list[AnyFlow]:
    """Return the flows that a command may execute: those of the given file, or else of the project. If a file has several flows,
    the one with the name `wanted` is chosen.
    """
    return _flows_of(file, wanted) if file is not None else project_flows(wanted)


def project_flows(wanted: str | None = None, *, all_of_them: bool = False) -> list[AnyFlow]:
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


def load_resources(named: str | None) -> Resources | None:
    """Return the resources of an engine that are the variable `name` of `file.py:name`, or else those of the project. An error of
    a function that makes them is reported with file and line.
    """
    option = "--resources"
    if named is None:
        named, option = project_table().get("resources"), "[tool.holdfast] resources"
        if named is None:
            return None
        if not isinstance(named, str):
            raise SettingError(
                f'{option} in pyproject.toml must name a variable, as in "app.py:open_resources"'
            )
        named = os.path.relpath(project_file().parent / named)
    file, name = split(named)
    if name is None:
        raise SettingError(f"{option} {named}: name the variable too, as in {file}:resources")
    module, path = _module(file), Path(file).resolve()
    if not hasattr(module, name):
        raise SettingError(f"{option}: {file} has no variable {name!r}{did_you_mean(name, vars(module))}")

    @asynccontextmanager
    async def opened() -> AsyncIterator[Mapping[str, Any]]:
        async with AsyncExitStack() as until:
            try:
                made = await open_resources(getattr(module, name), until)
            except Exception as raised:
                raise SettingError(f"{option} {named}: {_say_raised(file, path, raised)}") from raised
            yield made

    return opened


def split(named: str) -> tuple[str, str | None]:
    """Split `"file.py:flow"` into file and name; the name is None if there is none."""
    file, colon, name = named.rpartition(":")
    return (file, name) if colon and name.isidentifier() and not os.path.exists(named) else (named, None)


def _flows_in(module: ModuleType) -> Found:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, (Flow, Graph)) or is_capabilities(value)
    }


def _compiled(found: Flow[Any] | Graph[Any] | Capabilities, file: str) -> AnyFlow:
    if not isinstance(found, Graph):
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
    return f"{_say_raised(file, path, raised)}\nThe file could not be imported; --debug shows the traceback."


def _say_raised(file: str, path: Path, raised: BaseException) -> str:
    """Describe an exception with the last line of the file in its traceback."""
    own = [frame for frame in traceback.extract_tb(raised.__traceback__) if frame.filename == str(path)]
    return (
        f"{file}:{own[-1].lineno}: {type(raised).__name__}: {raised}"
        if own
        else f"{file}: {type(raised).__name__}: {raised}"
    )
