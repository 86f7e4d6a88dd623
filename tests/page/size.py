"""Prints how large the page is as it is sent, and how much of it each module is: `python tests/page/size.py`."""

from __future__ import annotations

import gzip

from holdfast.server import page_files, page_script


def main() -> None:
    sent = {name: len(page_files.read(name).packed) for name in page_files.NAMES}
    print(
        f"{sum(sent.values()) / 1024:.1f} KB as sent:",
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


if __name__ == "__main__":
    main()
