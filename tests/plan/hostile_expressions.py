"""Expressions that try to take long, and values for them to read: written by hand, and generated from a seed."""

from __future__ import annotations

import random
from typing import Any

ITEMS = list(range(100))
TEXT = "x" * 3_900

BY_HAND: list[tuple[str, dict[str, Any]]] = [
    # the list of the trial that chose the library
    ("context.l.all(x, context.l.all(y, context.l.all(z, x + y + z >= 0)))", {"context": {"l": list(range(1000))}}),
    ("+".join(["1"] * 20_000) + " > 0", {}),
    ("context.l.map(x, context.l.map(y, y)) != []", {"context": {"l": ITEMS}}),
    ("(" * 5_000 + "true" + ")" * 5_000, {}),
    ("context.s.matches('(a+)+$')", {"context": {"s": "a" * 60 + "!"}}),
    ("context.s.matches('a{10000000}')", {"context": {"s": "a"}}),
    ("context.l.all(s, s != '')", {"context": {"l": ["x" * 1_000_000] * 100}}),
    ("&&".join(["true"] * 60_000), {}),
    ("context.l.map(x, goal).size() == 9000", {"context": {"l": ITEMS * 90}, "goal": "x" * 64_000}),
    ("context.l.map(x, context.l) == context.l.map(x, context.l)", {"context": {"l": ITEMS * 20}}),
    # found while the bounds were built: each took seconds or hundreds of megabytes with the bounds of the trial
    (
        "goal.map(x,goal)" + ".map(z,[z,z,z,z,z,z,z,z])" * 6 + " == goal.map(x,goal)" + ".map(z,[z,z,z,z,z,z,z,z])" * 6,
        {"goal": ITEMS},
    ),
    ("[" + "1," * 180 + "1].map(x," + "goal+" * 24 + "'') == []", {"goal": TEXT}),
    ("policy.all(x,!goal.matches('(x{0,900})*[^y]{1,999}'+string(x)))", {"policy": ITEMS, "goal": TEXT[:3_500]}),
    ("policy.all(x,!goal.matches('(x{0,900})*[^y]{1,999}z'))", {"policy": ITEMS, "goal": TEXT[:3_500]}),
    ("!goal.matches('" + r"\\pL" * 80 + "[^y]z')", {"goal": TEXT}),
    (
        "goal.all(x," + "&&".join(["goal==goal"] * 40) + ")",
        {"goal": [[[] for _ in range(12)] for _ in range(100)]},
    ),
    (
        "policy.all(x," + "&&".join(["goal==goal"] * 40) + ")",
        {"policy": [True] * 100, "goal": {f"k{number}": number for number in range(100)}},
    ),
    ("policy.all(x," + "&&".join(["!goal.contains(context)"] * 18) + ")",
     {"policy": ITEMS, "goal": "a" * 2_000 + "b", "context": "a" * 1_000 + "c"}),
    ("[" * 200 + "]" * 200 + " == []", {}),
    ("!" * 400 + "true", {}),
    ("context" + ".a" * 200 + " == 1", {"context": {}}),
]  # fmt: skip


KINDS = {
    "goal": "text",
    "policy": "numbers",
    "context": "lists",
    "input": "map",
    "output": "words",
    "error": "number",
}
"""Root -> what is there. The shortest paths leave the most room for work."""
OVER = {"policy": "number", "output": "text", "context": "numbers", "input": "text"}
"""What a macro may go through -> what its variable is then."""


def generate(luck: random.Random) -> tuple[str, dict[str, Any]]:
    """Return an expression of up to 500 characters without type errors, and values that fill the bounds."""
    writer = _Writer(luck)
    length = luck.randint(20, 500)
    text = writer.boolean(4)
    while True:
        longer = f"{text}{luck.choice(['&&', '&&', '||'])}{writer.boolean(luck.randint(1, 4))}"
        if len(longer) > length:
            break
        text = longer
    if len(text) > 500:
        return generate(luck)
    used = [root for root in KINDS if root in text]
    size = 3_900 // max(1, len(used))
    return text, {root: _value(luck, KINDS[root], size) for root in used}


def _value(luck: random.Random, kind: str, size: int) -> Any:
    match kind:
        case "text":
            return luck.choice(["x" * size, "é" * (size // 2), "xy" * (size // 2)])
        case "numbers":
            return [luck.randint(0, 9) for _ in range(min(100, size // 2))]
        case "lists":
            inner = max(1, min(100, (size // 3) // 100 - 1))
            return [[1] * inner for _ in range(min(100, size // (2 * inner + 3)))]
        case "map":
            return {f"k{number}": "x" * max(1, size // 100 - 10) for number in range(min(100, size // 12))}
        case "words":
            return ["x" * max(1, size // 100 - 3)] * min(100, size // 4)
        case _:
            return luck.choice([0, 1, 7, 2**62, 2.5])


class _Writer:
    """Writes expressions whose parts have the right types, with macros wherever one may be."""

    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.variable: tuple[str, str] | None = None

    def boolean(self, depth: int) -> str:
        pick = self.luck.randrange(11) if depth > 0 else self.luck.randrange(3)
        match pick:
            case 0 | 1:
                kind = self.luck.choice(["text", "number", "numbers", "lists", "map", "words"])
                return f"({self.of(kind, depth)}{self.luck.choice(['==', '!='])}{self.of(kind, depth)})"
            case 2:
                return f"({self.of('text', depth)}<{self.of('text', depth)})"
            case 3:
                return f"({self.of('number', depth)} in {self.of('numbers', depth)})"
            case 4:
                return f"({self.of('text', depth)} in {self.of('words', depth)})"
            case 5:
                return f"!{self.boolean(depth - 1)}"
            case 6 | 7 if self.variable is None:
                return self.macro(
                    self.luck.choice(["all", "exists", "exists_one"]), lambda: self.boolean(depth - 1)
                )
            case 8:
                verb = self.luck.choice(["contains", "startsWith", "endsWith"])
                return f"{self.of('text', depth)}.{verb}({self.of('text', depth)})"
            case 9:
                pattern = self.luck.choice(
                    ["(x+x+)+y", "x*x*x*$", "^[a-z]{1,99}$", "(x|xx)*y", "(x{1,30}){1,30}", "\\\\pL+y"]
                )
                return f"{self.of('text', depth)}.matches('{pattern}')"
            case _:
                return f"({self.boolean(depth - 1)}&&{self.boolean(depth - 1)})"

    def macro(self, name: str, body: Any) -> str:
        over = self.luck.choice(list(OVER))
        self.variable = ("v", OVER[over])
        text = f"{over}.{name}(v,{body()})"
        self.variable = None
        return text

    def of(self, kind: str, depth: int) -> str:
        roots = [root for root, is_kind in KINDS.items() if is_kind == kind]
        if self.variable is not None and self.variable[1] == kind:
            roots.append(self.variable[0])
        root = self.luck.choice(roots)
        if depth <= 0 or self.luck.random() < 0.3:
            return root
        sums = f"({self.of(kind, depth - 1)}+{self.of(kind, depth - 1)})"
        match kind:
            case "text":
                return self.luck.choice([sums, root, "'x'"])
            case "number":
                return self.luck.choice(
                    [
                        f"size({self.of('text', depth - 1)})",
                        f"size({self.of('numbers', depth - 1)})",
                        root,
                        "7",
                    ]
                )
            case "words" if self.variable is None and self.luck.random() < 0.5:
                return self.macro("map", lambda: self.of("text", depth - 1))
            case "numbers" if self.variable is None and self.luck.random() < 0.5:
                return self.luck.choice(
                    [
                        self.macro("map", lambda: self.of("number", depth - 1)),
                        f"policy.filter(v,{self.filtering(depth)})",
                    ]
                )
            case "lists" if self.variable is None and self.luck.random() < 0.5:
                return self.macro("map", lambda: self.of("numbers", depth - 1))
            case "map":
                return root
            case _:
                return sums

    def filtering(self, depth: int) -> str:
        self.variable = ("v", "number")
        text = self.boolean(depth - 1)
        self.variable = None
        return text
