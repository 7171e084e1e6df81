"""Printing results: one JSON object on one line for machines, tables for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

PIPED_WIDTH = 140  # columns of a table that goes to a file or a pipe

json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on one line."
)
force_option: Callable[[Any], Any] = click.option("--force", is_flag=True, help="Replace the output if it exists.")


def print_json(result: msgspec.Struct) -> None:
    """Print `result` as one JSON object on one line; JSON has no infinite numbers, so that they are "inf" or "-inf"."""
    click.echo(msgspec.json.encode(_finite(msgspec.to_builtins(result))).decode())


def _finite(value: Any) -> Any:
    """`value` with text in the place of infinite numbers; NaN stays, which is written as null."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; numbers in columns after the first stand to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_header=any(columns))
    for index, column in enumerate(columns):
        numeric = index > 0 and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console = Console()
    if console.is_terminal:
        console.print(table)
        return
    console = Console(width=PIPED_WIDTH)
    with console.capture() as capture:
        console.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


def shown(cell: object) -> str:
    """A number with the digits that matter, or any other thing as text."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.7f}" if 0.99 <= cell < 1.01 else f"{cell:.3g}"  # a cosine's digits are after the nines
    if isinstance(cell, int):
        return f"{cell:,}"
    return str(cell)


def percent(part: float) -> str:
    """A part of a whole for people: `97.1 %`. It is 100 % or 0 % only for all or nothing."""
    tenths = round(1000 * part)
    if 0 < part < 1:
        tenths = min(max(tenths, 1), 999)
    return f"{tenths / 10:g} %"


def size(number: int) -> str:
    """Bytes for people: `90.8 MB`."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {unit}" if unit != "B" else f"{number} B"
        value /= 1000
    return f"{value:.1f} TB"
