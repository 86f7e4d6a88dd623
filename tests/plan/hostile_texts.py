"""Texts that try to end, to fill or to occupy the process that reads them as a plan. As a program: reads them all, and prints how
each ended, with the seconds of CPU that it took.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

from holdfast import plan

SIZE = 3_900_000
HALF = SIZE // 2
MEMORY_BYTES = 600 * 1024 * 1024

DEEP, MANY, ALIAS, KEY = (
    "nested deeper than 100",
    "more than 1,000,000 values",
    "a YAML alias",
    "a key of an object must",
)
NUMBER, SECOND, SYNTAX, TAG = (
    "a number or date on line 1 is longer",
    "a second YAML document",
    "it is not valid",
    "the YAML tag",
)
DIRECTIVES = "more than 100 YAML directives"


def laughs() -> bytes:
    return b"".join(b"%c: &%c [*%c,*%c]\n" % (98 + n, 98 + n, 97 + n, 97 + n) for n in range(20))


def directives() -> bytes:
    return b"".join(b"%%TAG !a%d! tag:a,2000:\n" % n for n in range(130_000))


def keys() -> bytes:
    return b",".join(b'"k%d":1' % n for n in range(330_000))


TEXTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "brackets of 50 KB": (lambda: b"a: " + b"[" * 50_000, DEEP),
    "brackets": (lambda: b"[" * SIZE, DEEP),
    "closed brackets": (lambda: b"a: " + b"[" * HALF + b"]" * HALF, DEEP),
    "braces": (lambda: b"a: " + b"{" * SIZE, KEY),
    "braces with keys": (lambda: b"a: " + b"{a: " * (SIZE // 4), DEEP),
    "dashes": (lambda: b"- " * HALF, DEEP),
    "indentation": (lambda: b"".join(b" " * n + b"a:\n" for n in range(2_700)), DEEP),
    "questions": (lambda: b"? " * HALF, KEY),
    "base 60": (lambda: b"a: " + b"1:" * HALF + b"1", NUMBER),
    "base 60 of 320 KB": (lambda: b"a: " + b"1:" * 160_000 + b"1", NUMBER),
    "digits": (lambda: b"a: " + b"9" * SIZE, NUMBER),
    "hexadecimal digits": (lambda: b"a: 0x" + b"f" * SIZE, NUMBER),
    "parts of a second": (lambda: b"a: 2001-01-01T00:00:00." + b"0" * SIZE, NUMBER),
    "a list": (lambda: b"a: [" + b"1," * 1_900_000 + b"1]", MANY),
    "empty objects": (lambda: b"a: [" + b"{}," * 1_250_000 + b"]", MANY),
    "keys": (lambda: b"".join(b"k%d: 1\n" % n for n in range(300_000)), "read"),
    "anchors": (lambda: b"a: [" + b"&a 1," * 60_000 + b"]", "read"),
    "aliases": (lambda: b"x: &a 1\na: [" + b"*a," * 1_200_000 + b"]", "larger than 4,000,000 bytes"),
    "laughs": (lambda: b"a: &a [1,1]\n" + laughs(), ALIAS),
    "an alias of itself": (lambda: b"a: &a [*a]", ALIAS),
    "a merge": (lambda: b"a: {x: 1}\nb:\n  <<: {y: 2}\n", "a YAML merge key"),
    "tags": (lambda: b"a: !!python/object/apply:os.system [ls]", TAG),
    "a set": (lambda: b"a: !!set {x, y}", TAG),
    "a long tag": (lambda: b"a: !" + b"y" * SIZE + b" 1", TAG),
    "directives": (lambda: directives() + b"---\na: 1", DIRECTIVES),
    "directives of a second document": (lambda: b"a: 1\n...\n" + directives() + b"---\na: 1", DIRECTIVES),
    "directives in UTF-16": (lambda: (directives()[:1_900_000] + b"\n---\na: 1").decode().encode("utf-16"), DIRECTIVES),
    "documents": (lambda: b"--- {}\n" * 500_000, SECOND),
    "comments": (lambda: b"#\n" * HALF, "it is not an object"),
    "a long key": (lambda: b"a" * SIZE + b": 1", SYNTAX),
    "a long key with a question": (lambda: b"? " + b"a" * SIZE + b"\n: 1", "read"),
    "a key that is a list": (lambda: b"? [a]\n: 1", KEY),
    "escapes": (lambda: b'a: "' + b"\\x41" * 900_000 + b'"', "read"),
    "lines": (lambda: b"a: |\n" + b" c\n" * 1_200_000, "read"),
    "a long text that begins with a number": (lambda: b"a: 1984 " + b"was long " * 200, "read"),
    "no UTF-8": (lambda: b"a: \xff", SYNTAX),
    "a NUL": (lambda: b"a: \0", SYNTAX),
    "half of a pair": (lambda: rb'a: "\ud800"', SYNTAX),
    "JSON of braces": (lambda: b'{"a":' * 700_000, DEEP),
    "JSON of 103 levels": (lambda: b'{"a":' * 103 + b"1" + b"}" * 103, DEEP),
    "JSON with empty lists": (lambda: b'{"a":[' + b"[]," * 1_250_000 + b"1]}", MANY),
    "JSON with keys": (lambda: b"{" + keys() + b"}", "read"),
    "JSON with an equal key": (lambda: b"{" + keys() + b',\n"k5":2}', "twice, on lines 1 and 2"),
    "JSON with a long text": (lambda: b'{"a":"' + b"\\n" * HALF + b'",\n"a":1}', "twice, on lines 1 and 2"),
    "JSON with lines": (lambda: b'{"a":1,' + b"\n" * 1_000_000 + b'"a":2}', "twice, on lines 1 and 1000001"),
    "JSON with a long number": (lambda: b'{"a":' + b"9" * SIZE + b"}", SYNTAX),
    "JSON of quotes": (lambda: b'{"' * HALF, SYNTAX),
}  # fmt: skip
"""Name -> what makes the text, and how it must end: `read`, or with this problem."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    given = sys.stdin.buffer
    while line := given.readline():
        data = given.read(int(line))
        began = time.process_time()
        try:
            plan.read(data)
            told = "read"
        except plan.PlanError as refused:
            (problem,) = refused.problems
            told = str(problem)
        print(json.dumps([told[:300], time.process_time() - began]), flush=True)


if __name__ == "__main__":
    main()
