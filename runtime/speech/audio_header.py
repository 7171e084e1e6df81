"""Find truncated recordings by their headers: libsndfile accepts truncated WAV and OGG files."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO

MAGIC = {b"RIFF", b"RF64", b"fLaC", b"OggS"}  # the first four bytes of each format that is read
MAX_CHUNKS = 1000  # of a WAV file; a recorder writes fewer than ten
STREAMED = 0x7FFF0000  # from here on the size of a WAV's data was written by a program to a pipe, and is unknown
OGG_PAGE = 27 + 255 + 255 * 255  # bytes of the largest page
END_OF_STREAM = 4  # flag of the last page


def check_complete(file: BinaryIO) -> str | None:
    """The evidence that the file is truncated, or None (a truncated FLAC file fails when decoded)."""
    file.seek(0)
    magic = file.read(4)
    size = file.seek(0, io.SEEK_END)
    if magic in (b"RIFF", b"RF64"):
        return _wav(file, size)
    return _ogg(file, size) if magic == b"OggS" else None


def _wav(file: BinaryIO, size: int) -> str | None:
    """Walk the chunks up to that of the samples, and compare its size with what is left of the file."""
    place, long_size = 12, None
    for _ in range(MAX_CHUNKS):
        file.seek(place)
        if len(header := file.read(8)) < 8:
            return "truncated: a WAV header without samples"
        name, length = struct.unpack("<4sI", header)
        if name == b"ds64" and len(sizes := file.read(16)) == 16:
            long_size = struct.unpack("<QQ", sizes)[1]
        if name == b"data":
            length = long_size if length == 0xFFFFFFFF and long_size is not None else length
            left = size - place - 8
            if length == 0 < left:  # as a recorder leaves it that was stopped hard
                return f"damaged: states no samples, but {left} bytes follow"
            known = long_size is not None or length < STREAMED
            return f"truncated: states {length} bytes of samples, and holds {left}" if known and length > left else None
        place += 8 + length + length % 2
    return f"not a readable recording (more than {MAX_CHUNKS} chunks before its samples)"


def _ogg(file: BinaryIO, size: int) -> str | None:
    """Look for the flag of the last page."""
    start = max(0, size - OGG_PAGE)
    file.seek(start)
    tail = file.read(OGG_PAGE)
    page = tail.rfind(b"OggS")
    if page < 0 or page + 27 > len(tail):
        return "truncated: ends within a page"
    segments = tail[page + 27 : page + 27 + tail[page + 26]]
    whole = len(segments) == tail[page + 26] and page + 27 + len(segments) + sum(segments) <= len(tail)
    return None if whole and tail[page + 5] & END_OF_STREAM else "truncated: its last page is missing"
