"""Makes what is sent from the sources of the page: one script from its modules, and both script and styles without what only
readers need.

The modules follow rules that make this simple, and that tests hold: they import names from each other and nothing else, export
what they declare at its declaration, and no two of them declare the same name at their outermost level. So the script is the
modules one after the other, those that are imported first. One file compresses to three quarters of what a hundred do.

Comments, indentation, spaces beside punctuation, and needless commas, semicolons and brackets are left out, and names become
short ones: those of variables that are nothing else, and those of custom properties. Nothing else is changed. A test compares
the syntax trees of the sources and of what is sent.
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
    ) | [ ]?(=>|===|!==|&&|\|\||\?\?|[{}(),;?:=<>|*&]|\[|])[ ]?
    """,
    re.VERBOSE,
)
_IN_STATEMENT = re.compile(r"(?<=[;{,(\[?:=>&|])\n|\n(?=[})\].?:&|])")
_NEEDLESS_LINE_END = re.compile(r"(?<![\w$])\n|\n(?![\w$])")
_NEEDLESS_MARK = re.compile(
    r"""("(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`)|,(?=[)}\]])|;(?=})|(?<![\w$)\]])\((\w+)\)(?==>)|[ ]([-+/%])[ ](?![-+/])"""
)
_DECLARED = re.compile(r"(?<![\w$.])(?:function\*?|const|let) (?:(\w+)|\[([^]=]*)])")
_WORD = re.compile(r"[\w$]+")
_NOT_A_NAME = re.compile(r"""(?<=[.])[\w$]+|[\w$]+(?=\??:)""")
_TEXT = re.compile(
    r""""(?:[^"\\\n]|\\.)*"|`[^\n]*`|(?<=[(,=:?!&|\[ ])/(?![*/ ])(?:\\.|\[(?:\\.|[^]\n])*]|[^/\\\n])+/"""
)
_TOKEN = re.compile(r"""[\w$]+|=[=>]+|[^\s\w]""")
_CONST = re.compile(r"(?<![\w$.\"])const(?=[ \[{])")
_DIGITS = string.digits + string.ascii_letters
_RESERVED = {"do", "if", "in"}
_PLACEHOLDER = re.compile(r"\$\{[^{}`]*\}")
_CSS_SPACE = re.compile(r'("[^"\n]*")|;?\s*(})\s*|\s*([{;,>])\s*|(:) ')
_CSS_PROPERTY = re.compile(r"--[\w-]+")


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
    return squeeze_script(loosen(rename(joined, short_names(joined))))


def short_names(text: str) -> dict[str, str]:
    """Return a short name for each name of a variable of a script (made by `join`) that is nothing else there: no property, no
    key, and no word of a text. Names that are used first near each other are alike, because that compresses best.
    """
    plain = strip_comments(text)
    other = {*_NOT_A_NAME.findall(plain), *_shorthands(plain)}
    for told in _TEXT.findall(plain):
        other.update(_WORD.findall(_PLACEHOLDER.sub(" ", told)))
    declared = {name for found in _DECLARED.findall(plain) for part in found for name in _WORD.findall(part)}
    words = dict.fromkeys(_WORD.findall(plain))
    names = [name for name in words if name in declared - other and len(name) > 2]
    free = (start + end for end in string.ascii_letters + string.digits for start in string.ascii_lowercase)
    unused = (name for name in free if name not in words and name not in _RESERVED)
    return dict(zip(names, unused, strict=False))


def _shorthands(text: str) -> set[str]:
    """Return the words that are a variable and a key in one: `{ width, height = 1 }`."""
    found, open_marks = set[str](), [""]
    tokens = ["", *_TOKEN.findall(_TEXT.sub(_placeholders, text)), ""]
    for before, word, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if word in {"{", "[", "("}:
            open_marks.append(word)
        elif word in {"}", "]", ")"}:
            open_marks.pop()
        elif open_marks[-1] == "{" and before in {"{", ","} and after in {"}", ",", "="}:
            found.add(word)
    return found


def _placeholders(text: re.Match[str]) -> str:
    """Return only the code of a text."""
    return " ".join(_PLACEHOLDER.findall(text[0])).replace("${", "(").replace("}", ")")


def _digits(number: int) -> str:
    """Return a number in as few letters and digits as possible."""
    rest, digit = divmod(number, len(_DIGITS))
    return (_digits(rest - 1) if rest else "") + _DIGITS[digit]


def rename(text: str, names: Mapping[str, str]) -> str:
    """Return a script in which each of these names is replaced, wherever it occurs."""
    return _WORD.sub(lambda found: names.get(found[0], found[0]), text)


def loosen(text: str) -> str:
    """Return a script that declares its constants as variables: no constant is ever set, which the type checker has checked."""
    return _CONST.sub("let", text)


def squeeze_script(text: str) -> str:
    """Return a script without comments, indentation and needless spaces and marks."""
    lines = _KEPT_SPACE.sub(lambda found: found[1] or found[2], strip_comments(text))
    marked = _NEEDLESS_MARK.sub(
        lambda found: found[found.lastindex] if found.lastindex else "", _IN_STATEMENT.sub("", lines)
    )
    return _NEEDLESS_LINE_END.sub("", marked)


def squeeze_styles(text: str) -> str:
    """Return a stylesheet without comments, indentation and needless spaces."""
    return _CSS_SPACE.sub(lambda found: "".join(filter(None, found.groups())), strip_comments(text))


def rename_properties(text: str) -> str:
    """Return a stylesheet with short names of its custom properties."""
    counted = Counter(_CSS_PROPERTY.findall(text)).most_common()
    names = {name: f"--{_digits(number)}" for number, (name, _) in enumerate(counted)}
    return _CSS_PROPERTY.sub(lambda found: names[found[0]], text)


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
