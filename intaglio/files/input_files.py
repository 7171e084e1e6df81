"""Read the files that users name: text is UTF-8, memory is bounded, and nothing waits forever.

A regular file is read, and a pipe that something writes to, such as <(command) or /dev/stdin; a folder, a device, and a
pipe without a writer are refused.
"""

from __future__ import annotations

import errno
import io
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from intaglio.errors import IntaglioError, SourceError, UsageError

MAX_BYTES = 256 << 20  # of a file that is read whole; as text it takes up to four times that in memory
MAX_LINE = 64 << 20  # bytes of a line that is read from a stream
SILENCE = 60.0  # seconds that a pipe may take for its first bytes
PIECE = 1 << 20  # bytes read at a time
VOCABULARIES = ("vocab.txt", "merges.txt")  # text files that transformers reads tokens from
UTF8_MARK, UTF16_MARKS, UTF32_MARKS = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff"), (b"\xff\xfe\0\0", b"\0\0\xfe\xff")

_read_before: dict[tuple[int, int], bytes] = {}  # device and inode of a pipe -> its content, which it gives only once


class NotTextError(ValueError):
    """Bytes that are not UTF-8 text: why, and how to convert them."""


class _Pipe(io.RawIOBase):
    """The reading end of a pipe, of which `first` was read already."""

    def __init__(self, descriptor: int, first: bytes):
        self._descriptor = descriptor
        self._first = first

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer)
        data = self._first[: len(target)] or os.read(self._descriptor, len(target))
        self._first = self._first[len(data) :]
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def open_file(path: Path, pipes: bool = True) -> io.BufferedReader:
    """Open a regular file, or with `pipes` a pipe, for reading.

    Raises `OSError` whose `strerror` is the reason: also for a folder, a device, and a pipe that gives nothing.
    """
    try:
        kind = path.stat().st_mode
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    if stat.S_ISREG(kind):
        return path.open("rb")
    if not (stat.S_ISFIFO(kind) and pipes):
        what = "a folder" if stat.S_ISDIR(kind) else "a pipe" if stat.S_ISFIFO(kind) else "a device"
        raise OSError(errno.EINVAL, f"is {what}, expected a regular file", str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else it would wait for a writer
    try:
        first = _first_bytes(descriptor, str(path))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return io.BufferedReader(_Pipe(descriptor, first))


def _first_bytes(descriptor: int, path: str) -> bytes:
    """The first bytes of a pipe, at once if nothing writes to it: then those that it gave before."""
    status = os.fstat(descriptor)
    try:
        first = os.read(descriptor, PIECE)
    except BlockingIOError:  # it has a writer
        if not select.select([descriptor], [], [], SILENCE)[0]:
            raise OSError(errno.ETIMEDOUT, f"is a pipe without data for {SILENCE:.0f} seconds", path) from None
        first = os.read(descriptor, PIECE)
    first = first or _read_before.get((status.st_dev, status.st_ino), b"")
    if not first:
        raise OSError(errno.EINVAL, "is a pipe that nothing is written to", path)
    return first


def read_bytes(path: Path, limit: int = MAX_BYTES, pipes: bool = True) -> bytes:
    """The content of a file of at most `limit` bytes. A pipe can be read again. Raises `OSError`, as `open_file`."""
    content = io.BytesIO()
    with open_file(path, pipes) as file:
        while content.tell() <= limit and (piece := file.read(min(PIECE, limit + 1 - content.tell()))):
            content.write(piece)
    if content.tell() > limit:
        size = path.stat().st_size
        shown = f"{size} bytes" if size > limit else f"more than {limit} bytes"
        raise OSError(errno.EINVAL, f"{shown}, expected at most {limit}", str(path))
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        _read_before[status.st_dev, status.st_ino] = content.getvalue()
    return content.getvalue()


def decode(data: bytes, start: bool = True) -> str:
    """The text of UTF-8 `data` without a byte order mark, its lines ended by line feeds. Raises `NotTextError`.

    `start`: whether the file begins with `data`; only there is U+FEFF a byte order mark.
    """
    check_encoding(data, start)
    mark = len(UTF8_MARK) if start and data.startswith(UTF8_MARK) else 0
    try:
        text = data[mark:].decode("utf-8")
    except UnicodeDecodeError as error:
        at = mark + error.start
        raise NotTextError(
            f"not UTF-8 text (byte {at} is 0x{data[at]:02x}). "
            "Convert it, for example from Latin-1: iconv -f ISO-8859-1 -t UTF-8"
        ) from error
    return text.replace("\r\n", "\n")


def check_encoding(data: bytes, start: bool = True) -> None:
    """Raise `NotTextError` for a NUL byte, and at the start of a file for the marks of UTF-16 and UTF-32."""
    name = "UTF-32" if data.startswith(UTF32_MARKS) else "UTF-16" if data.startswith(UTF16_MARKS) else ""
    if start and name:
        raise NotTextError(f"not UTF-8 text but {name}. Convert it: iconv -f {name} -t UTF-8")
    if (at := data.find(b"\0")) >= 0:
        raise NotTextError(f"not UTF-8 text (byte {at} is NUL). If it is UTF-16: iconv -f UTF-16LE -t UTF-8")


def read_text(
    path: Path,
    what: str = "",
    limit: int = MAX_BYTES,
    error: type[IntaglioError] = UsageError,
    fix: str = "Give the path of a readable text file.",
) -> str:
    """The text of the UTF-8 file `path`, as `decode` returns it; `what` names it in errors, such as "--input".

    Raises `error`, with `fix`, unless it is a readable file.
    """
    where = f"{what} {path}".lstrip()
    try:
        return decode(read_bytes(path, limit))
    except NotTextError as reason:
        raise error(f"{where}: {reason}") from reason
    except OSError as reason:
        raise error(f"{where}: {reason.strerror}. {fix}") from reason


def text_lines(text: str) -> list[str]:
    r"""The lines of a text, split at "\n" alone: other separators, such as U+2028, are part of a line."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def stream_lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 stream as they arrive, without line feeds; `name` names it in errors.

    Raises `UsageError` with the number of a line that is not text, or longer than `MAX_LINE`.
    """
    number = 0
    while line := stream.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise UsageError(f"{name}: line {number} is longer than {MAX_LINE} bytes. Split it.")
        try:
            text = decode(line, start=number == 1)
        except NotTextError as error:
            raise UsageError(f"{name}: line {number} is {error}") from error
        yield text.removesuffix("\n").removesuffix("\r")


def check_folder(folder: Path) -> None:
    """Raise `SourceError` for files of a checkpoint that a library would read wrongly.

    A pipe or a device would be read without end, and a byte order mark would be part of a vocabulary's first token.
    """
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise SourceError(f"{path}: is a pipe or a device, expected a regular file. Remove it, or copy the file.")
        if not (path.suffix == ".json" or path.name in VOCABULARIES) or not path.is_file():
            continue
        with path.open("rb") as file:
            if file.read(len(UTF8_MARK)).startswith((UTF8_MARK, *UTF16_MARKS)):
                raise SourceError(
                    f"{path}: begins with a byte order mark, which transformers does not support. Save it as UTF-8 "
                    f"without one, for example: sed -i '1s/^\\xEF\\xBB\\xBF//' {path}"
                )
