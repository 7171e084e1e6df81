"""Lay out a table as lines of text: which columns to drop on a narrow terminal, column widths, and wrapping."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from intaglio.cli.printing.printable import TIED

MARGIN, GAP = 2, 3  # spaces before the first column, and between columns; the rule extends by one on each side
# Words of more than PATH characters (paths, hashes) are split first, those of more than WORD and of NAME last, shorter
# ones never.
PATH, WORD, NAME = 36, 24, 16
NEXT = {PATH: WORD, WORD: NAME}
LEAST = 12  # minimum width of a wrapped cell, so that a sentence does not become a list of words
NUMBER = re.compile(
    r"[+-]?[\d.,]+(e[+-]?\d+)?( ?[kMGT]?B| ?%|×)?|-?inf|nan|yes|no"
)  # a count, a size, a part, a verdict


@dataclass(frozen=True)
class Table:
    """A table with its layout: header, rule and rows as padded cells; `left_out` are the dropped columns."""

    header: list[list[str]]  # lines of cells
    rule: str
    rows: list[list[list[str]]]  # rows of lines of cells
    kept: list[int]  # places of the columns shown
    left_out: list[str]


def lay_out(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, may_drop: Sequence[str] = ()
) -> Table:
    """Lay the table out in `width` characters; None: one line per row, of any length.

    1. Cells of text wrap between words, down to `LEAST` characters; words of more than `PATH` are split.
    2. If that is too wide, columns of `may_drop` are dropped in their order.
    3. If that is too wide, words of more than `WORD` are split, then those of more than `NAME`. Numbers, sizes and
       verdicts are never split, so a line can still be longer than `width`.
    """
    if width is None:
        rows = [["; ".join(cell.split("\n")) for cell in row] for row in rows]
    kept, left_out, whole = list(range(len(columns))), [], PATH
    while True:
        cells = [[columns[index], *(row[index] for row in rows)] for index in kept]
        numeric = [index > 0 and is_numeric(column[1:]) for index, column in zip(kept, cells, strict=True)]
        widths, fits = _widths(cells, numeric, width, whole)
        if fits or whole == NAME:
            break
        if droppable := [name for name in may_drop if name not in left_out]:
            left_out.append(droppable[0])
            kept.remove(list(columns).index(droppable[0]))
        else:
            whole = NEXT[whole]
    header, *body = (
        _lines([wrap(column[line], wide) for column, wide in zip(cells, widths, strict=True)], widths, numeric)
        for line in range(len(rows) + 1)
    )
    header = [line for line in header if any(cell.strip() for cell in line)]
    rule = " " * (MARGIN - 1) + "─" * (sum(widths) + GAP * (len(widths) - 1) + 2)
    return Table(header, rule, body, kept, left_out)


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column is right-aligned: all of its cells are numbers, sizes or verdicts, or empty."""
    return any(cells) and all(not cell or NUMBER.fullmatch(cell) for cell in cells)


def joined(line: Sequence[str], paint: Callable[[int, str], str] = lambda place, text: text) -> str:
    """Join the cells of a line, without trailing spaces; `paint` may style each, which does not count as width."""
    painted = [
        cell.replace(text, paint(place, text)) if (text := cell.strip()) else cell for place, cell in enumerate(line)
    ]
    return (" " * MARGIN + (" " * GAP).join(painted)).rstrip()


def _widths(cells: list[list[str]], numeric: list[bool], limit: int | None, whole: int) -> tuple[list[int], bool]:
    """The width of each column, and whether all of them fit into `limit`; words up to `whole` are not split."""
    widths = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in cells]
    if limit is None:
        return widths, True
    room = limit - MARGIN - 1 - GAP * (len(widths) - 1)
    least = [_least(column, right, whole) for column, right in zip(cells, numeric, strict=True)]
    while sum(widths) > room:
        narrower = [index for index in range(len(widths)) if widths[index] > least[index]]
        if not narrower:
            return widths, False
        widths[max(narrower, key=widths.__getitem__)] -= 1
    wrapped = [
        max(cell_len(line) for cell in column for line in wrap(cell, wide))
        for column, wide in zip(cells, widths, strict=True)
    ]
    return wrapped, True


def _least(column: list[str], numeric: bool, whole: int) -> int:
    """Return the minimum width of a column. Headers wrap between words, numbers do not."""
    header, *body = column
    heading = max((cell_len(word) for word in header.split()), default=0)
    if numeric:
        return max(heading, *(cell_len(cell) for cell in body))
    word = max((min(cell_len(word), whole) for cell in body for word in _words(cell)), default=0)
    return max(heading, word, min(LEAST, max((cell_len(cell) for cell in body), default=0)))


def _words(text: str) -> list[str]:
    """Split into words; a comparison sign stays with its number."""
    return re.split(r"(?<![≤≥<>±=]) +|\n", text)


def wrap(text: str, width: int, fold: bool = True) -> list[str]:
    """Wrap a text into lines of at most `width` characters; without `fold`, a longer word has a line of its own."""
    lines = []
    for paragraph in text.split("\n"):
        if cell_len(paragraph) <= width:
            lines.append(paragraph)
            continue
        line = ""
        for word in _words(paragraph):
            if line and cell_len(line) + 1 + cell_len(word) <= width:
                line += f" {word}"
                continue
            if line:
                lines.append(line)
            *full, line = _fold(word, width) if fold else [word]
            lines += full
        lines.append(line)
    return lines


def _fold(word: str, width: int) -> list[str]:
    """Split a long word into pieces of at most `width` characters, if possible between the parts of a path."""
    pieces = []
    while cell_len(word) > width:
        piece = chop_cells(word, width)[0]
        folder, part = piece.rfind("/") + 1, max(piece.rfind(sign) for sign in "_-.") + 1
        piece = piece[: folder if folder > width // 4 else part if part > width // 2 else None]
        pieces.append(piece)
        word = word[len(piece) :]
    return [*pieces, word]


def _lines(cells: list[list[str]], widths: list[int], numeric: list[bool]) -> list[list[str]]:
    """Build the lines of padded cells of one row from the lines of each cell."""
    height = max(map(len, cells))
    return [
        [
            _padded(cell[line] if line < len(cell) else "", wide, right)
            for cell, wide, right in zip(cells, widths, numeric, strict=True)
        ]
        for line in range(height)
    ]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    text = text.replace(TIED, " ")
    return space + text if right else text + space
