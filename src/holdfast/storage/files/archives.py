"""Read and write archives as compressed files of lines. `holdfast.upkeep.archive` defines what the lines contain.

Invariant: a truncated or altered file is never accepted as complete, because of zstd's checksum and the digest in the last line.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from hashlib import sha256

import zstandard

from holdfast.errors import StoreCorrupt, StoreUnusable


def write_lines(file: str, lines: Iterable[bytes]) -> str:
    """Write lines to an existing, empty file, and return the sha256 of all lines, in hex."""
    digest = sha256()
    packer = zstandard.ZstdCompressor(level=9, write_checksum=True)
    with open(file, "wb") as raw, packer.stream_writer(raw, closefd=False) as stream:
        for line in lines:
            digest.update(line + b"\n")
            stream.write(line + b"\n")
        stream.flush(zstandard.FLUSH_FRAME)
    return digest.hexdigest()


def read_lines(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the lines of an archive file. Raises `StoreCorrupt` if it is not an archive or is damaged."""
    try:
        with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            for line in io.BufferedReader(stream, 1 << 20):
                if not line.endswith(b"\n"):
                    raise StoreCorrupt(f"{file} is truncated. Use another copy of it.")
                yield line[:-1]
    except zstandard.ZstdError as fault:
        raise StoreCorrupt(
            f"{file} is not an archive of Holdfast, or is damaged ({fault}). Use another copy of it."
        ) from fault
    except OSError as fault:
        raise StoreUnusable(f"{file} cannot be read: {fault.strerror or fault}. Check the path.") from fault
