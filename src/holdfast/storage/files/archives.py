"""Files of lines, compressed: how an archive lies on disk. What the lines say is `holdfast.upkeep.archive`'s.

Invariant: a file that was cut or altered is never read as a whole one: zstd's checksum, and the digest in the last line.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from hashlib import sha256

import zstandard

from holdfast.errors import StoreCorrupt, StoreUnusable


def write_lines(file: str, lines: Iterable[bytes]) -> str:
    """Write lines to a file that is there and empty: the sha256 of them all, in hex."""
    digest = sha256()
    packer = zstandard.ZstdCompressor(level=9, write_checksum=True)
    with open(file, "wb") as raw, packer.stream_writer(raw, closefd=False) as stream:
        for line in lines:
            digest.update(line + b"\n")
            stream.write(line + b"\n")
        stream.flush(zstandard.FLUSH_FRAME)
    return digest.hexdigest()


def read_lines(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file. Raises `StoreCorrupt` where it is not such a file, or is damaged."""
    try:
        with open(file, "rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as stream:
            for line in io.BufferedReader(stream, 1 << 20):
                if not line.endswith(b"\n"):
                    raise StoreCorrupt(f"{file} is truncated. Use another copy of it.")
                yield line[:-1]
    except zstandard.ZstdError as fault:
        raise StoreCorrupt(f"{file} is not an archive of Holdfast, or is damaged ({fault}).") from fault
    except OSError as fault:
        raise StoreUnusable(f"{file} cannot be read: {fault.strerror or fault}. Check the path.") from fault
