"""Makes what is sent from the sources of the page: one script from its modules, and both script and styles without what only
readers need.

The modules follow rules that make this simple, and that tests hold: they import names from each other and nothing else, export
what they declare at its declaration, and no two of them declare the same name at their outermost level. So the script is the
modules one after the other, those that are imported first. One file compresses to three quarters of what a hundred do.

Comments, indentation, spaces beside punctuation, and needless commas, semicolons and brackets are left out, and long names
become short ones. Nothing else is changed. A test compares the syntax trees of the sources and of what is sent.
"""

from __future__ import annotations

import posixpath
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping

IMPORT = re.compile(r'^import \{[^}]*\} from "([^"]+)";\n?', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_INSIDE_LINE = re.compile(r"/\*\* @type \{[^*]*\} \*/ ?|(?<=[;,{}(\[]) // .*")
_KEPT_SPACE = re.compile(
    r"""
    ( "(?:[^"\\\n]|\\.)*"                                                   # a string
    | `.*`                                                                  # from the first to the last ` of a line
    | (?<=[(,=:?!&|]) [ ]? /(?![*/ ])(?:\\.|\[(?:\\.|[^]\n])*]|[^/\\\n])+/[a-z]*   # a regular expression
    ) | [ ]?(=>|===|!==|&&|\|\||\?\?|[{}(),;?:=<>|*&]|\[|])[ ]? | [ ]([-+/%])[ ](?![-+])
    """,
    re.VERBOSE,
)
_NEEDLESS_LINE_END = re.compile(r"(?<=[;{,(\[?:=>&|])\n|\n(?=[})\].?:&|])")
_NEEDLESS_MARK = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`)|,(?=[)}\]])|;(?=})|(?<![\w$)\]])\((\w+)\)(?==>)"""
)
_DECLARED = re.compile(r"^ *(?:async )?(?:function\*?|const|let) (\w{4,})", re.MULTILINE)
_DIGITS = string.digits + string.ascii_letters
_WORD = re.compile(r"[\w$]+")
_NOT_A_NAME = re.compile(r"""(?<=[.])[\w$]+|[\w$]+(?=\??:)""")
_MAYBE_A_KEY = re.compile(r"[{,]\s*([\w$]+)\s*(?=[,}]|=[^=>])")
"""A word that may be a key and its value at once, as in `{ name, at = 0 }`; it may also be one of several arguments."""
_TEXT = re.compile(r""""(?:[^"\\\n]|\\.)*"|`[^\n]*`""")
_PLACEHOLDER = re.compile(r"\$\{[^{}`]*\}")
_CSS_SPACE = re.compile(r'("[^"\n]*")|\s*([{};,>])\s*|(:) ')


def join(modules: Mapping[str, str], entry: str, wanted: Iterable[str] = ()) -> str:
    """Return one script from modules (path -> source): those that `entry` needs, in the order in which they must run. As far as
    that leaves a choice, they are in the `wanted` order.
    """
    order: dict[str, None] = {}
    needs = {
        name: [
            posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) for path in IMPORT.findall(text)
        ]
        for name, text in modules.items()
    }

    def visit(name: str, order: dict[str, None]) -> None:
        if name not in order:
            for other in needs[name]:
                visit(other, order)
            order[name] = None

    needed: dict[str, None] = {}
    visit(entry, needed)
    for name in (*wanted, entry):
        if name in needed:
            visit(name, order)
    return "\n".join(_EXPORT.sub("", IMPORT.sub("", modules[name])) for name in order)


def make_script(modules: Mapping[str, str], entry: str, wanted: Iterable[str] = ()) -> str:
    """Return the script that is sent, made from modules (path -> source)."""
    joined = join(modules, entry, wanted)
    return squeeze_script(rename(joined, short_names(joined)))


def short_names(text: str) -> dict[str, str]:
    """Return a short name for each name that a script (made by `join`) declares and that is nothing else: no property, no key,
    also not one without a colon, and no word of a text. A name that is declared in several places has the same short name in all
    of them.
    """
    words = Counter(_WORD.findall(text))
    other = set(_NOT_A_NAME.findall(text))
    other.update(_MAYBE_A_KEY.findall(strip_comments(text)))
    for told in _TEXT.findall(text):
        other.update(_WORD.findall(_PLACEHOLDER.sub(" ", told)))
    names = [name for name in dict.fromkeys(_DECLARED.findall(text)) if name not in other]
    names.sort(key=lambda name: -words[name])
    return {name: f"${_number(at)}" for at, name in enumerate(names)}


def _number(value: int) -> str:
    """Write a number in few characters."""
    high, low = divmod(value, len(_DIGITS))
    return (_number(high) if high else "") + _DIGITS[low]


def rename(text: str, names: Mapping[str, str]) -> str:
    """Return a script in which each of these names is replaced, wherever it occurs."""
    return _WORD.sub(lambda found: names.get(found[0], found[0]), text)


def squeeze_script(text: str) -> str:
    """Return a script without comments, indentation and needless spaces and marks."""
    lines = _KEPT_SPACE.sub(lambda found: found[1] or found[2] or found[3], strip_comments(text))
    return _NEEDLESS_MARK.sub(lambda found: found[1] or found[2] or "", _NEEDLESS_LINE_END.sub("", lines))


def squeeze_styles(text: str) -> str:
    """Return a stylesheet without comments, indentation and needless spaces."""
    return _CSS_SPACE.sub(lambda found: found[1] or found[2] or found[3], strip_comments(text))


def strip_comments(text: str) -> str:
    """Return a script or a stylesheet without comments, indentation and empty lines. A comment begins its line, ends
    it, or is a cast (`/** @type {…} */`); nothing else in the page looks like one, and no string of the page spans lines.
    """
    lines, in_block = [], False
    for line in text.split("\n"):
        left = line.strip()
        if in_block or left.startswith("/*"):
            _, ended, left = left.partition("*/")
            in_block = not ended
        left = "" if in_block or left.startswith("//") else _INSIDE_LINE.sub("", left).lstrip()
        if left:
            lines.append(left)
    return "\n".join(lines)
