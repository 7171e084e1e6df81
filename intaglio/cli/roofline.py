"""`intaglio roofline`."""

from __future__ import annotations

from pathlib import Path

import click

from intaglio.cli.output import json_option, number_of, print_json, print_table, size

EPILOG = """\b
Examples:
  intaglio roofline gpt2-lut
  intaglio roofline gpt2-lut --tokens 1 --tokens 4 --length 256 --picture roofline.svg
"""


@click.command("roofline", epilog=EPILOG)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--tokens", multiple=True, type=int, default=(1, 8, 64), show_default=True, help="New tokens of a decoder's run."
)
@click.option("--length", multiple=True, type=int, default=(128, 1024), show_default=True, help="Tokens of a text.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: every processor that this process may use.")
@click.option("--picture", type=click.Path(path_type=Path), help="Write the roofline there, as SVG.")
@json_option
def roofline_command(
    bundle: Path,
    tokens: tuple[int, ...],
    length: tuple[int, ...],
    threads: int | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare the speed of BUNDLE with what this machine's memory and processors allow.

    Bytes and operations of a run are counted from the graph; bandwidth and peak are measured, and so is the run.
    """
    from intaglio.validate.roofline import roofline

    result = roofline(bundle, tokens, length, threads)
    if picture is not None:
        from intaglio.files import atomic_write
        from intaglio.validate.roofline_picture import picture as draw

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
        (row.tokens, row.length, size(row.bytes), float(row.operations), row.intensity, row.bound,
         row.predicted_ms, row.measured_ms, row.ratio)
        for row in result.rows
    ]  # fmt: skip
    title = (
        f"{result.bundle}, {number_of(result.threads, 'threads')}: memory gives {size(int(result.bandwidth))}/s, "
        f"float32 products make {result.peak / 1e9:.0f} GFLOP/s"
    )
    print_table(title, columns, rows, may_drop=["operations", "bytes", "operations a byte"])
    if picture is not None:
        click.echo(f"picture: {picture}")
