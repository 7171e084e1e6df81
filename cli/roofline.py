"""`intaglio roofline`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from intaglio.cli.options.choices import BUNDLE, PATH
from intaglio.cli.options.runtime import threads_option
from intaglio.cli.printing.results import force_option, json_option, number_of, print_json, print_table, say, size
from intaglio.cli.running.command import OUTPUT, section, verb

if TYPE_CHECKING:
    from intaglio.validation.roofline.roofline import Roofline

EPILOG = """\b
Examples:
  intaglio roofline gpt2-lut
  intaglio roofline gpt2-lut --tokens 1 --tokens 4 --length 256 --picture roofline.svg
"""


@verb("roofline", epilog=EPILOG)
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--tokens", multiple=True, type=int, default=(1, 8, 64), help="New tokens per run of a decoder. Can be repeated."
)
@click.option(
    "--length", multiple=True, type=int, default=(128, 1024), help="Sequence length after the run. Can be repeated."
)
@threads_option()
@section(OUTPUT)
@click.option("--picture", type=PATH, help="Write the roofline plot to this SVG file.")
@force_option
@json_option
def roofline_command(length: tuple[int, ...], picture: Path | None, force: bool, as_json: bool, **options: Any) -> None:
    """Compare the speed of BUNDLE with the limits of this machine's memory and processors.

    Bytes and operations of a run are counted from the graph; bandwidth, peak and the run itself are measured.
    """
    from intaglio.files.atomic import atomic_write, check_output_file
    from intaglio.validation.roofline.roofline import roofline

    if picture is not None:
        check_output_file(picture, force, "--picture")
    result = roofline(lengths=length, **options)
    if picture is not None:
        from intaglio.validation.roofline.picture import picture as draw

        atomic_write(picture, draw(result).encode())
    if as_json:
        print_json(result)
        return
    columns = [
        "tokens",
        "length",
        "bytes",
        "operations",
        "operations a byte",
        "bound by",
        "predicted ms",
        "measured ms",
        "ratio",
    ]
    rows = [
        (row.tokens, row.length, size(row.bytes), float(row.operations), row.intensity,
         row.bound + ", from cache" * row.above_memory, row.predicted_ms, row.measured_ms, row.ratio)
        for row in result.rows
    ]  # fmt: skip
    title = (
        f"{result.bundle}, {number_of(result.threads, 'threads')}: memory bandwidth {size(int(result.bandwidth))}/s, "
        f"peak of float32 products {result.peak / 1e9:.0f} GFLOP/s"
    )
    print_table(title, columns, rows, may_drop=["operations", "bytes", "operations a byte", "predicted ms"])
    if note := _cache_note(result):
        say(note)
    if picture is not None:
        say(f"picture: {picture}")


def _cache_note(found: Roofline) -> str | None:
    """Explain rows that are faster than the memory bound; None where there is none."""
    above = [row for row in found.rows if row.above_memory]
    if not above:
        return None
    named = ", ".join(
        f"{row.tokens} token{'s' * (row.tokens > 1)} at length {row.length} ({size(row.bytes)})" for row in above
    )
    cache = "last-level cache" + (f" of {size(found.cache)}" if found.cache else "")
    if found.cache and max(row.bytes for row in above) > found.cache:
        return f"Faster than memory allows: {named}. A part stays in the {cache}, or other programs read memory, too."
    return f"Faster than memory allows: {named}. Between two runs all of that stays in the {cache}."
