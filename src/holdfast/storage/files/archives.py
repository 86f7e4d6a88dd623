"""Read and write archives as compressed files of lines. `holdfast.upkeep.archive` defines what the lines contain.

Invariants: a truncated or altered file is never accepted as complete, because of zstd's checksum and the digest in the last line;
and a line has at most `LINE_BYTES_MAX` bytes, because a file of a few kilobytes can hold a line of many gigabytes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from hashlib import sha256

import zstandard

from holdfast.errors import StoreCorrupt, StoreUnusable

LINE_BYTES_MAX = 256 * 1024 * 1024
"""How long a line is at most. The longest are those of blobs: in base64, a value of 200 MB has a line of this length."""


def write_lines(file: str, lines: Iterable[bytes]) -> str:
    """Write lines to an existing, empty file, and return the sha256 of all lines, in hex."""
    digest = sha256()
    packer = zstandard.ZstdCompressor(level=9, write_checksum=True)
    with open(file, "wb") as raw, packer.stream_writer(raw, closefd=False) as stream:
        for line in lines:
            if len(line) >= LINE_BYTES_MAX:
                raise StoreUnusable(
                    f"a value of the run takes {len(line) // 1_000_000} MB, and an archive takes values of up to "
                    f"{LINE_BYTES_MAX // 4 * 3 // 1_000_000} MB. `holdfast backup FILE` keeps the whole store."
                )
            digest.update(line + b"\n")
            stream.write(line + b"\n")
        stream.flush(zstandard.FLUSH_FRAME)
    return digest.hexdigest()


def read_lines(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of an archive file. Raises `StoreCorrupt` if it is not an archive or is damaged."""
    try:
        with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            lines = io.BufferedReader(stream, 1 << 20)
            while line := lines.readline(LINE_BYTES_MAX + 1):
                if len(line) > LINE_BYTES_MAX:
                    raise StoreCorrupt(
                        f"{file} has a line of more than {LINE_BYTES_MAX // 1_000_000} MB, which no archive of Holdfast has. "
                        "Use another copy of it."
                    )
                if not line.endswith(b"\n"):
                    raise StoreCorrupt(f"{file} is truncated. Use another copy of it.")
                yield line[:-1]
    except zstandard.ZstdError as fault:
        raise StoreCorrupt(
            f"{file} is not an archive of Holdfast, or is damaged ({fault}). Use another copy of it."
        ) from fault
    except OSError as fault:
        raise StoreUnusable(f"{file} cannot be read: {fault.strerror or fault}. Check the path.") from fault
