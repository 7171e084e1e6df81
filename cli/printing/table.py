"""Lay out a table as lines of text with rich, which has neither minimum widths nor columns to drop if it is narrow."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

from rich.box import Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from intaglio.cli.printing.printable import TIED, tied

GAP = 3  # columns of the terminal between two cells, and beside the first and the last
# Words of more than PATH characters (paths, hashes) are split first, those of more than WORD and of NAME last, shorter
# ones never.
PATH, WORD, NAME = 36, 24, 16
LEAST = 12  # minimum width of a wrapped cell, so that a sentence does not become a list of words
NUMBER = re.compile(
    r"[+-]?[\d.,]+(e[+-]?\d+)?( ?[kMGT]?B| ?%|×)?|-?inf|nan|yes|no"
)  # a count, a size, a part, a verdict
MAY_BREAK = "\x1f"  # to rich a space of no width
RULE = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
STYLES = {None: "", True: "green", False: "bold red"}  # of cells by their verdict


def lay_out(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    may_drop: Sequence[str] = (),
    verdicts: Sequence[Sequence[bool | None]] | None = None,
    styles: bool = False,
) -> tuple[list[str], list[str]]:
    """Lay the table out in `width` characters; None: one line per row, of any length. Also returns the dropped columns.

    1. Cells of text wrap between words, down to `LEAST` characters; words of more than `PATH` are split.
    2. If that is too wide, columns of `may_drop` are dropped in their order.
    3. If that is too wide, words of more than `WORD` are split, then those of more than `NAME`. Numbers, sizes and
       verdicts are never split, so a line can still be longer than `width`.
    """
    if width is None:
        rows = [["; ".join(cell.split("\n")) for cell in row] for row in rows]
    every = len(may_drop)
    for dropped, whole in [*((count, PATH) for count in range(every + 1)), (every, WORD), (every, NAME)]:
        kept = [place for place, name in enumerate(columns) if name not in may_drop[:dropped]]
        cells = [[tied(columns[place]), *(tied(row[place]) for row in rows)] for place in kept]
        numeric = [place > 0 and is_numeric([row[place] for row in rows]) for place in kept]
        widths = [max(cell_len(line) for cell in column for line in cell.split("\n")) for column in cells]
        least = [_least(column, right, whole) for column, right in zip(cells, numeric, strict=True)]
        room = sum(widths) if width is None else width - GAP * len(kept)
        if sum(map(min, least, widths)) <= room:
            break
    while sum(widths) > room and (wider := [place for place in range(len(kept)) if widths[place] > least[place]]):
        widths[max(wider, key=widths.__getitem__)] -= 1
    broken = [[_breakable(cell, wide) for cell in column] for column, wide in zip(cells, widths, strict=True)]
    written = io.StringIO()
    console = Console(
        file=written,
        width=sum(widths) + GAP * len(kept) + 1,
        height=1,
        color_system="standard" if styles else None,
        force_terminal=styles,
        force_jupyter=False,
    )
    table = Table(box=RULE, show_header=any(columns), header_style="")
    for (header, *body), right, wide in zip(broken, numeric, widths, strict=True):
        lines = [line for cell in (header, *body) for line in Text(cell).wrap(console, wide, overflow="fold")]
        wide = max(cell_len(line.plain.rstrip()) for line in lines)
        table.add_column(Text(header), justify="right" if right else "left", width=wide, overflow="fold")
    for index in range(len(rows)):
        judged = [STYLES[verdicts[index][place] if verdicts else None] for place in kept]
        table.add_row(*(Text().append(column[index + 1], style) for column, style in zip(broken, judged, strict=True)))
    console.print(table)
    shown = written.getvalue().replace(MAY_BREAK, "").replace(TIED, " ")
    return [line.rstrip() for line in shown.splitlines()][1:-1], list(may_drop[:dropped])


def is_numeric(cells: Sequence[str]) -> bool:
    """Whether a column is right-aligned: all of its cells are numbers, sizes or verdicts, or empty."""
    return any(cells) and all(not cell or NUMBER.fullmatch(cell) for cell in cells)


def _least(column: Sequence[str], numeric: bool, whole: int) -> int:
    """Return the minimum width of a column. Headers wrap between words, numbers do not."""
    header, *body = column
    heading = max((cell_len(word) for word in header.split()), default=0)
    if numeric:
        return max(heading, *map(cell_len, body))
    word = max((min(cell_len(word), whole) for cell in body for word in cell.split()), default=0)
    return max(heading, word, min(LEAST, max(map(cell_len, body), default=0)))


def _breakable(cell: str, width: int) -> str:
    """Let words that are wider than their column break after folders, and wider parts of them after other signs."""
    for sign in ("/", "[_.-]"):
        words = re.split(rf"([ \n{MAY_BREAK}])", cell)
        cell = "".join(re.sub(rf"(?<={sign})(?=.)", MAY_BREAK, w) if cell_len(w) > width else w for w in words)
    return cell
