"""Makes what is sent from the sources of the page: scripts from its modules, and scripts and styles without comments.

A browser would fetch a hundred modules level by level, and one file compresses to three quarters of what a hundred do. So a
script is its entry and the modules that this needs, one after the other, those that are imported first. Each module is a function
that is called once and returns what it exports: its own names stay its own, and nothing is renamed. What one script has, another
does not repeat. A test compares the syntax trees of the sources and of what is sent.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

SCOPE = "$modules"
"""Where the modules of all scripts find each other, by their paths. The first script makes and exports it."""
_IMPORT = re.compile(r'^import \{([^}]*)\} from "([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(
    r"^export (?=(?:async )?(?:function\*?|class) (\w+)|const (\w+|\{[^}]*\}|\[[^]]*\]) =)", re.MULTILINE
)
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
_STRING = r'"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`'
_PATTERN = r"(?<=[(,=:?!&|])[ ]?/(?![*/ ])(?:\\.|\[(?:\\.|[^]\n])*]|[^/\\\n])+/"
_COMMENT = re.compile(rf"({_STRING}|{_PATTERN})|[ \t]*//[^\n]*|/\*.*?\*/[ \t]*", re.DOTALL)
_EMPTY_LINE = re.compile(r"^[ \t]*\n", re.MULTILINE)


def make_script(modules: Mapping[str, str], entry: str, first: str | None = None) -> str:
    """Return the script of a module, from modules (path -> source). With `first`, the script of that module has been sent before,
    at its path.
    """
    sent = order(modules, first) if first else []
    start = f'import {{ {SCOPE} }} from "./{first}";\n' if first else f"export const {SCOPE} = {{}};\n"
    parts = [wrap(name, modules[name]) for name in order(modules, entry) if name not in sent]
    exported = ", ".join(_exported(modules[entry]))
    end = f'export const {{ {exported} }} = {SCOPE}["{entry}"];\n' if exported else ""
    return start + "".join(parts) + end


def order(modules: Mapping[str, str], entry: str) -> list[str]:
    """Return the modules that `entry` needs, and `entry`, in the order in which they must run. Raises `ValueError` if some need
    each other.
    """
    found: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"These modules import each other: {' -> '.join((*path, name))}")
        if name not in found:
            for _, other in _IMPORT.findall(modules[name]):
                visit(_resolved(name, other), (*path, name))
            found.append(name)

    visit(entry, ())
    return found


def wrap(name: str, source: str) -> str:
    """Return a module as a function that is called once. Raises `ValueError` for a form of import or export that this does not
    know: a module imports names from another one, and exports functions, classes and constants where it declares them.
    """
    exported = ", ".join(_exported(source))
    code = _EXPORT.sub("", _IMPORT.sub(lambda found: _constants(name, *found.groups()), source))
    if unknown := _LEFT.search(code):
        raise ValueError(f"{name}: this line cannot be sent in a script with others: {unknown[0]}")
    returned = f"return {{ {exported} }};\n" if exported else ""
    return f'{SCOPE}["{name}"] = (() => {{\n{strip_comments(code)}{returned}}})();\n'


def strip_comments(text: str) -> str:
    """Return a script or a stylesheet without comments and empty lines."""
    return _EMPTY_LINE.sub("", _COMMENT.sub(lambda found: found[1] or "", text))


def _constants(name: str, names: str, path: str) -> str:
    """Return the import of a module as constants: `import { a, b as c }` becomes `const { a, b: c }`."""
    return f'const {{{names.replace(" as ", ": ")}}} = {SCOPE}["{_resolved(name, path)}"];'


def _resolved(name: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))


def _exported(source: str) -> Iterable[str]:
    for declared in _EXPORT.findall(source):
        yield from re.findall(r"\w+", "".join(declared))
