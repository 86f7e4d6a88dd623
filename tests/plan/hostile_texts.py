"""Texts that try to end, to fill or to occupy the process that reads them as a plan. As a program: reads them all, and prints how
each ended, with the seconds of CPU that it took.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from holdfast import plan

SIZE = 3_900_000
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


def texts() -> dict[str, tuple[bytes, str]]:
    """Return each text, and how it must end: `read`, or with this problem."""
    half = SIZE // 2
    laughs = b"".join(b"%c: &%c [*%c,*%c]\n" % (98 + n, 98 + n, 97 + n, 97 + n) for n in range(20))
    directives = b"".join(b"%%TAG !a%d! tag:a,2000:\n" % n for n in range(130_000))
    keys = b",".join(b'"k%d":1' % n for n in range(330_000))
    return {
        "brackets of 50 KB": (b"a: " + b"[" * 50_000, DEEP),
        "brackets": (b"[" * SIZE, DEEP),
        "closed brackets": (b"a: " + b"[" * half + b"]" * half, DEEP),
        "braces": (b"a: " + b"{" * SIZE, KEY),
        "braces with keys": (b"a: " + b"{a: " * (SIZE // 4), DEEP),
        "dashes": (b"- " * half, DEEP),
        "indentation": (b"".join(b" " * n + b"a:\n" for n in range(2_700)), DEEP),
        "questions": (b"? " * half, KEY),
        "base 60": (b"a: " + b"1:" * half + b"1", NUMBER),
        "base 60 of 320 KB": (b"a: " + b"1:" * 160_000 + b"1", NUMBER),
        "digits": (b"a: " + b"9" * SIZE, NUMBER),
        "hexadecimal digits": (b"a: 0x" + b"f" * SIZE, NUMBER),
        "parts of a second": (b"a: 2001-01-01T00:00:00." + b"0" * SIZE, NUMBER),
        "a list": (b"a: [" + b"1," * 1_900_000 + b"1]", MANY),
        "empty objects": (b"a: [" + b"{}," * 1_250_000 + b"]", MANY),
        "keys": (b"".join(b"k%d: 1\n" % n for n in range(300_000)), "read"),
        "anchors": (b"a: [" + b"&a 1," * 60_000 + b"]", "read"),
        "aliases": (b"x: &a 1\na: [" + b"*a," * 1_200_000 + b"]", "larger than 4,000,000 bytes"),
        "laughs": (b"a: &a [1,1]\n" + laughs, ALIAS),
        "an alias of itself": (b"a: &a [*a]", ALIAS),
        "a merge": (b"a: {x: 1}\nb:\n  <<: {y: 2}\n", "a YAML merge key"),
        "tags": (b"a: !!python/object/apply:os.system [ls]", TAG),
        "a set": (b"a: !!set {x, y}", TAG),
        "a long tag": (b"a: !" + b"y" * SIZE + b" 1", TAG),
        "directives": (directives + b"---\na: 1", DIRECTIVES),
        "directives of a second document": (b"a: 1\n...\n" + directives + b"---\na: 1", DIRECTIVES),
        "directives in UTF-16": ((directives[:1_900_000] + b"\n---\na: 1").decode().encode("utf-16"), DIRECTIVES),
        "documents": (b"--- {}\n" * 500_000, SECOND),
        "comments": (b"#\n" * half, "it is not an object"),
        "a long key": (b"a" * SIZE + b": 1", SYNTAX),
        "a long key with a question": (b"? " + b"a" * SIZE + b"\n: 1", "read"),
        "a key that is a list": (b"? [a]\n: 1", KEY),
        "escapes": (b'a: "' + b"\\x41" * 900_000 + b'"', "read"),
        "lines": (b"a: |\n" + b" c\n" * 1_200_000, "read"),
        "a long text that begins with a number": (b"a: 1984 " + b"was long " * 200, "read"),
        "no UTF-8": (b"a: \xff", SYNTAX),
        "a NUL": (b"a: \0", SYNTAX),
        "half of a pair": (rb'a: "\ud800"', SYNTAX),
        "JSON of braces": (b'{"a":' * 700_000, DEEP),
        "JSON of 103 levels": (b'{"a":' * 103 + b"1" + b"}" * 103, DEEP),
        "JSON with empty lists": (b'{"a":[' + b"[]," * 1_250_000 + b"1]}", MANY),
        "JSON with keys": (b"{" + keys + b"}", "read"),
        "JSON with an equal key": (b"{" + keys + b',\n"k5":2}', "twice, on lines 1 and 2"),
        "JSON with a long text": (b'{"a":"' + b"\\n" * half + b'",\n"a":1}', "twice, on lines 1 and 2"),
        "JSON with lines": (b'{"a":1,' + b"\n" * 1_000_000 + b'"a":2}', "twice, on lines 1 and 1000001"),
        "JSON with a long number": (b'{"a":' + b"9" * SIZE + b"}", SYNTAX),
        "JSON of quotes": (b'{"' * half, SYNTAX),
    }  # fmt: skip


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
