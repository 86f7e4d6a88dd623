"""Prints how large the page is as it is sent, and how much of it each module is.

    python tests/page/size.py [--arrange SECONDS]

With `--arrange` it first tries other orders of the modules for so long, and keeps the one that compresses best.
"""

from __future__ import annotations

import gzip
import random
import sys
import time
from pathlib import Path

from holdfast.server import page_files, page_script


def main() -> None:
    if sys.argv[1:2] == ["--arrange"]:
        arrange(float(sys.argv[2]))
    sent = {name: len(page_files.read(name).packed) for name in page_files.NAMES}
    counted = sent[page_files.SCRIPT] + sent[page_files.STYLES]
    print(
        f"{counted / 1024:.1f} KB of scripts and styles as sent:",
        *(f"{name} {size / 1024:.1f}" for name, size in sent.items()),
    )
    sources = page_files.modules()
    plain = {name: len(page_script.squeeze_script(text)) for name, text in sources.items()}
    alone = {
        name: len(gzip.compress(page_script.squeeze_script(text).encode(), 9))
        for name, text in sources.items()
    }
    for name in sorted(plain, key=plain.__getitem__):
        print(f"{plain[name]:7,} bytes, {alone[name]:6,} alone  {name}")


def arrange(seconds: float) -> None:
    """Move one module at a time, and keep what makes the script smaller."""
    modules = page_files.modules()
    names = page_script.short_names(page_script.join(modules, page_files.SCRIPT, page_files.order()))

    def squeezed(text: str) -> str:
        code = page_script.IMPORT.sub("", text).replace("\nexport ", "\n")
        return page_script.squeeze_script(page_script.rename(code, names))

    sources = {
        name: "".join(found[0] for found in page_script.IMPORT.finditer(text)) + squeezed(text)
        for name, text in modules.items()
    }

    def size_of(order: list[str]) -> int:
        return len(gzip.compress(page_script.join(sources, page_files.SCRIPT, order).encode(), 9))

    known = [name for name in page_files.order() if name in sources]
    best = known + [name for name in sources if name not in known]
    smallest, until, luck = size_of(best), time.monotonic() + seconds, random.Random()
    while time.monotonic() < until:
        tried = best.copy()
        tried.insert(luck.randrange(len(best)), tried.pop(luck.randrange(len(best))))
        if (size := size_of(tried)) < smallest:
            best, smallest = tried, size
    file = Path(page_files.__file__).parent / page_files.FOLDER / "order.txt"
    file.write_text("\n".join(best) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
