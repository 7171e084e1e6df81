"""Read ARPA files, the text format of n-gram language models: plain or compressed, checked line by line."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from intaglio.errors import UsageError, one_line
from intaglio.files.input_files import UTF8_MARK, NotTextError, check_encoding, open_file
from intaglio.runtime.speech.ngram_tables import ROOT, NgramTables

MAX_ORDER = 10
MAX_NGRAMS = 1 << 27  # in all; they take 24 bytes each
MAX_LINE = 1 << 16  # bytes
MAX_PREAMBLE = 1000  # lines before \data\
LIMIT = 1000.0  # of log10 values; files write -99 for "never"


class _Line(NamedTuple):
    number: int
    text: bytes  # without spaces at the ends


class _WrongLine(Exception):  # noqa: N818 becomes a UsageError with the file's name
    """An invalid line: what it is, and what was expected."""

    def __init__(self, number: int, reason: str):
        super().__init__(f"line {number}: {reason}")


def read_arpa(path: Path) -> tuple[dict[str, int], NgramTables]:
    """Read an ARPA file, plain or compressed (.gz): the number of each word, and the n-grams.

    Every n-gram's context must be one of the file's n-grams too. Raises `UsageError` with the number of the line that
    is wrong.
    """
    try:
        with open_file(path) as plain:
            compressed = plain.peek(2)[:2] == b"\x1f\x8b"
            with gzip.open(plain) if compressed else plain as file:
                return _read(_lines(file))
    except (OSError, EOFError, zlib.error, _WrongLine) as error:
        reason = getattr(error, "strerror", None) or one_line(error, 300)
        raise UsageError(f"language model {path}: {reason}. Give a readable ARPA file, plain or .gz.") from error


def _lines(file: BinaryIO | gzip.GzipFile) -> Iterator[_Line]:
    """Yield the lines; raise an error at the end, before which the reader stops."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE:
            raise _WrongLine(number, f"longer than {MAX_LINE} bytes")
        try:
            check_encoding(line, start=number == 1)
        except NotTextError as error:
            raise _WrongLine(number, str(error)) from error
        yield _Line(number, (line.removeprefix(UTF8_MARK) if number == 1 else line).strip())
    raise _WrongLine(number + 1, "the file ends before \\end\\")


def _read(lines: Iterator[_Line]) -> tuple[dict[str, int], NgramTables]:
    counts, line = _counts(lines)
    words: dict[bytes, int] = {}
    tables: NgramTables | None = None
    for order, count in enumerate(counts, 1):
        if line.text != b"\\%d-grams:" % order:
            raise _WrongLine(line.number, f"{_shown(line.text)}, expected \\{order}-grams:")
        section = _Section(order, words, tables)
        line = section.read(lines)
        if section.entries != count:
            raise _WrongLine(line.number, f"{section.entries} {order}-grams, but \\data\\ states {count}")
        tables = section.added()
    if line.text != b"\\end\\":
        raise _WrongLine(line.number, f"{_shown(line.text)}, expected \\end\\")
    assert tables is not None
    return {word.decode(): number for word, number in words.items()}, tables


def _counts(lines: Iterator[_Line]) -> tuple[list[int], _Line]:
    """The number of n-grams of each order that \\data\\ states, and the line after it."""
    for line in lines:
        if line.text == b"\\data\\":
            break
        if line.number == MAX_PREAMBLE:
            raise _WrongLine(line.number, "no \\data\\ so far: not an ARPA file")
    counts: list[int] = []
    for line in lines:
        if not line.text:
            continue
        if line.text.startswith(b"\\"):
            break
        match = re.fullmatch(rb"ngram\s+(\d{1,3})\s*=\s*(\d{1,18})", line.text)
        if match is None or int(match[1]) != len(counts) + 1:
            raise _WrongLine(line.number, f"{_shown(line.text)}, expected ngram {len(counts) + 1}=COUNT")
        counts.append(int(match[2]))
        if len(counts) > MAX_ORDER or sum(counts) > MAX_NGRAMS:
            raise _WrongLine(line.number, f"more than {MAX_ORDER} orders or {MAX_NGRAMS} n-grams")
    if not counts or not counts[0]:
        raise _WrongLine(line.number, "no words: \\data\\ states no 1-grams")
    return counts, line


class _Section:
    """The n-grams of one order, while they are read."""

    def __init__(self, order: int, words: dict[bytes, int], tables: NgramTables | None):
        self.order = order
        self.entries = 0
        self._words = words
        self._tables = tables  # of the orders before; None for the words
        self._numbers = array("q")  # of the lines
        self._keys = array("q")
        self._log_prob = array("f")
        self._backoff = array("f")
        self._context: tuple[list[bytes], int] = ([], ROOT)  # the last one, which often comes again

    def read(self, lines: Iterator[_Line]) -> _Line:
        """Take the entries; return the line that begins with a backslash after them."""
        for line in lines:
            if line.text.startswith(b"\\") and (line.text == b"\\end\\" or line.text.endswith(b"-grams:")):
                return line
            if line.text:
                self._entry(line)
        raise AssertionError("the lines end with an error")

    def added(self) -> NgramTables:
        """The tables with these n-grams."""
        if self._tables is None:
            return NgramTables(self._log_prob, self._backoff)
        twice = self._tables.add(self._keys, self._log_prob, self._backoff)
        if twice is not None:
            raise _WrongLine(self._numbers[twice], f"a {self.order}-gram that an earlier line has too")
        return self._tables

    def _entry(self, line: _Line) -> None:
        fields = line.text.split()
        order = self.order
        if not order + 1 <= len(fields) <= order + 2:
            raise _WrongLine(
                line.number, f"{len(fields)} fields, expected a number, {order} words, and a number or none"
            )
        log_prob = _value(fields[0], line.number)
        if log_prob > 0:
            raise _WrongLine(line.number, f"log10 probability {log_prob:g}, expected at most 0")
        if self._tables is None:
            self._word(fields[1], line.number)
        else:
            self._keys.append(self._key(fields[1 : order + 1], self._tables, line.number))
            self._numbers.append(line.number)
        self._log_prob.append(log_prob)
        self._backoff.append(_value(fields[-1], line.number) if len(fields) == order + 2 else 0.0)
        self.entries += 1

    def _word(self, word: bytes, number: int) -> None:
        try:
            word.decode()
        except UnicodeDecodeError:
            raise _WrongLine(number, "not UTF-8 text, perhaps Latin-1: iconv -f ISO-8859-1 -t UTF-8") from None
        if self._words.setdefault(word, self.entries) != self.entries:
            raise _WrongLine(number, f"the word {_shown(word)}, which an earlier line has too")

    def _key(self, ngram: list[bytes], tables: NgramTables, number: int) -> int:
        """The key of an n-gram: its context, which the orders before must have, and its last word."""
        if unknown := [word for word in ngram if word not in self._words]:
            raise _WrongLine(number, f"the word {_shown(unknown[0])}, which is no 1-gram")
        *before, last = ngram
        if before != self._context[0]:
            node = ROOT
            for word in before:
                node = tables.find(node, self._words[word])
                if not node:
                    raise _WrongLine(number, f"an n-gram without its context {_shown(b' '.join(before))}")
            self._context = (before, node)
        return self._context[1] * tables.words + self._words[last]


def _value(field: bytes, number: int) -> float:
    try:
        value = float(field)
    except ValueError:
        value = math.nan
    if not abs(value) <= LIMIT:
        raise _WrongLine(number, f"{_shown(field)}, expected a log10 value of {-LIMIT:g} to {LIMIT:g}")
    return value


def _shown(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace"))
