"""Printing results: one JSON object on one line for machines, tables for people.

A terminal gets colours, and tables that fit its width. A file or a pipe gets neither: one row is one line. `NO_COLOR`
turns all styles off, bold too; `FORCE_COLOR` turns them on for files; a dumb terminal has none.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import click
import msgspec

from intaglio.cli.printing.printable import printable, wrapped
from intaglio.cli.running.command import OUTPUT, group
from intaglio.display.verbosity import is_quiet, is_verbose

json_option = group(OUTPUT, click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line."))
force_option = group(OUTPUT, click.option("--force", is_flag=True, help="Replace the output if it exists."))


def print_json(result: msgspec.Struct) -> None:
    """Print `result` as one JSON object on one line; JSON has no infinities, so they become "inf" or "-inf"."""
    click.echo(msgspec.json.encode(_finite(msgspec.to_builtins(result, enc_hook=_builtin))).decode())


def _builtin(value: Any) -> Any:
    """Convert a NumPy array to a list."""
    return value.tolist()


def _finite(value: Any) -> Any:
    """Replace infinities in `value` by strings; NaN stays and is written as null."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], may_drop: Sequence[str] = ()
) -> None:
    """Print a table: numbers after the first column are right-aligned, and a bool is a verdict, yes or no.

    If the terminal is too narrow, text wraps, and then the columns of `may_drop` are dropped in their order; never list
    the verdict there. In a file or a pipe each row is one line.
    """
    from intaglio.cli.printing.table import lay_out

    texts = [
        [printable(shown(cell, name == "cosine")) for name, cell in zip(columns, row, strict=True)] for row in rows
    ]
    verdicts = [[cell if isinstance(cell, bool) else None for cell in row] for row in rows]
    lines, left_out = lay_out(columns, texts, terminal_width(), may_drop, verdicts, has_styles())
    say(style(printable(title), bold=True))
    click.echo("\n".join(["", *lines]), color=has_styles())
    if left_out:
        say(style(f"  left out to fit: {', '.join(left_out)}", dim=True))
    say()


def shortened(lines: Sequence[str], limit: int) -> list[str]:
    """The first `limit` lines and how many more there are; with --verbose all of them."""
    if len(lines) <= limit + 1 or is_verbose():
        return list(lines)
    return [*lines[:limit], f"{len(lines) - limit:,} more, which --verbose shows"]


def verdict(passed: bool) -> str:
    """Return the last word of a comparison, to print with `say`: "Passed" in green, or "FAILED" in red."""
    return style("Passed", fg="green") if passed else style("FAILED", fg="red", bold=True)


def say(line: str = "") -> None:
    """Print a line that may contain styles; a terminal breaks it between words."""
    click.echo(_fitting(line, sys.stdout), color=has_styles())


def notice(line: str) -> None:
    """Print a line about the work on standard error, unless --quiet is given."""
    if not is_quiet():
        click.echo(_fitting(line, sys.stderr), err=True)


def _fitting(line: str, stream: TextIO) -> str:
    """`line` wrapped to the terminal behind `stream`; words, such as paths, stay whole."""
    width = shutil.get_terminal_size().columns
    if not stream.isatty() or len(click.unstyle(line)) <= width:
        return line
    return wrapped(line, width)


def style(text: str, **styles: Any) -> str:
    """Apply the styles of `click.style` to `text`, if standard output shows styles."""
    return click.style(text, **styles) if has_styles() else text


def has_styles() -> bool:
    """Whether standard output shows colours and bold text."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shown(cell: object, cosine: bool = False) -> str:
    """Format a cell: numbers with three digits, a cosine near 1 with seven decimals; empty for None."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.7f}" if cosine and 0.99 <= cell < 1.01 else f"{cell:.3g}"
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def percent(part: float) -> str:
    """Format a fraction: `97.1 %`. It is 100 % or 0 % only for exactly 1 or 0."""
    tenths = round(1000 * part)
    if 0 < part < 1:
        tenths = min(max(tenths, 1), 999)
    return f"{tenths / 10:g} %"


def size(number: int) -> str:
    """Format a number of bytes: `90.8 MB`."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}" if unit != "B" else f"{number} B"
        value /= 1000
    return f"{value:.1f} TB"


def number_of(number: int, things: str) -> str:
    """Format a count of `things`, a plural: `1 file`, `1,200 files`, `5 × 16-bit activations`."""
    if things[0].isdecimal():
        return f"{number:,} × {things}"
    first, space, rest = things.partition(" ")
    if number == 1:
        first = f"{first.removesuffix('ies')}y" if first.endswith("ies") else first.removesuffix("s")
    return f"{number:,} {first}{space}{rest}"


def counted(counts: Mapping[str, int]) -> str:
    """Format the counts of a pass: `106 weights, 1 bias`."""
    return ", ".join(number_of(number, kind) for kind, number in counts.items()) or "nothing"
