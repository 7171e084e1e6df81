"""The table of a bundle's engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from intaglio.cli.printing.results import print_table, size

if TYPE_CHECKING:
    from intaglio.bundle.bundle import EngineRecord


def print_engines(engines: Sequence[EngineRecord]) -> None:
    """Print a row for each engine; bits of caches and options of plans only if one has any."""
    columns = ["file", "target", "device", "SM", "size", "library"]
    rows: list[list[object]] = [
        [engine.path, engine.target, engine.gpu or "cpu", engine.sm or "", size(engine.bytes), engine.library]
        for engine in engines
    ]
    if any(engine.cache_bits for engine in engines):
        columns.append("cache bits")
        rows = [[*row, engine.cache_bits or ""] for row, engine in zip(rows, engines, strict=True)]
    if any(engine.plan.given for engine in engines):
        columns.append("plan")
        rows = [[*row, str(engine.plan)] for row, engine in zip(rows, engines, strict=True)]
    print_table("Engines", columns, rows, may_drop=["target", "library"])
