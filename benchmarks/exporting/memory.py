"""How much memory does an export with its check need, relative to the checkpoint?

    python -m benchmarks.exporting.memory [--billions 1 --billions 2] [--stored bfloat16] [--dtype float32] [--json]

A LLaMA of random weights is written tensor by tensor, and exported by `intaglio export` in a process of its own, once
with the check and once with --no-check. The memory is the peak of the resident memory of that process and its children
together, sampled every 20 ms: mapped pages of files count, although the system can take them back at any time, and
those that two processes share count twice. So it is an upper limit of the export's needs. The limit is 1.3 times the
checkpoint's file; the exported weights are stated too, as bfloat16 exported as float32 doubles.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec

from benchmarks.exporting.process_cost import tree_memory
from benchmarks.shared import random_llama
from intaglio.display.progress import step
from intaglio.exporters.checkpoints.checkpoint import WEIGHTS

LIMIT = 1.3
SHAPES = {  # billions of parameters -> layers, width, feed-forward width
    "0.25": random_llama.Shape(1024, 2816, 14, 16),
    "1": random_llama.Shape(2048, 5632, 17, 32),
    "2": random_llama.Shape(2560, 6912, 23, 32),
}


class Row(msgspec.Struct):
    """One export; bytes."""

    parameters: int
    stored: str
    dtype: str
    checkpoint: int
    exported: int
    checked: bool
    seconds: float
    peak: int
    ratio: float  # of the peak to the checkpoint


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--billions", type=click.Choice(list(SHAPES)), multiple=True, default=["1", "2"], show_default=True)
@click.option("--stored", type=click.Choice(list(random_llama.STORED)), multiple=True, default=["bfloat16"])
@click.option("--dtype", type=click.Choice(["float32", "float16"]), multiple=True, default=["float32"])
@click.option("--checked-only", is_flag=True, help="Leave out the exports with --no-check.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    billions: tuple[str, ...], stored: tuple[str, ...], dtype: tuple[str, ...], checked_only: bool, as_json: bool
) -> None:
    """Measure and print."""
    rows = []
    for size in billions:
        for kind in stored:
            with tempfile.TemporaryDirectory() as folder:
                checkpoint = random_llama.checkpoint(Path(folder) / "checkpoint", SHAPES[size], kind)
                for to in dtype:
                    for checked in [True] if checked_only else [False, True]:
                        with step(f"{size} billion, {kind} to {to}"):
                            rows.append(measure(checkpoint, Path(folder) / "bundle", kind, to, checked, SHAPES[size]))
                        if not as_json:
                            click.echo(line(rows[-1]))
    if as_json:
        click.echo(msgspec.json.encode({"limit": LIMIT, "rows": rows}).decode())


def measure(checkpoint: Path, output: Path, stored: str, dtype: str, checked: bool, shape: random_llama.Shape) -> Row:
    """Export in a process of its own."""
    command = [sys.executable, "-m", "intaglio", "export", str(checkpoint), "-o", str(output), "--force"]
    command += ["--dtype", dtype, *([] if checked else ["--no-check"])]
    seconds, peak = cost(command)
    size = (checkpoint / WEIGHTS).stat().st_size
    exported = sum(path.stat().st_size for path in output.glob("model.onnx*"))
    with contextlib.suppress(OSError):
        for path in output.glob("model.onnx*"):
            path.unlink()  # 8 GB each
    return Row(shape.parameters(), stored, dtype, size, exported, checked, seconds, peak, peak / size)


def cost(command: list[str]) -> tuple[float, int]:
    """Seconds of a command, and the peak in bytes of its resident memory and its children's."""
    start, peak = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
        while program.poll() is None:
            peak = max(peak, tree_memory(program.pid))
            time.sleep(0.02)
        printed, _ = program.communicate()
    if program.returncode != 0:
        sys.exit(f"exit code {program.returncode}: {printed}")
    return time.perf_counter() - start, peak


def line(row: Row) -> str:
    """A row for people."""
    kind = "with its check" if row.checked else "without a check"
    return (
        f"{row.parameters / 1e9:.2f} B, {row.stored} to {row.dtype}, {kind}: "
        f"peak {row.peak / 1e9:.2f} GB = {row.ratio:.2f} x the checkpoint ({row.checkpoint / 1e9:.2f} GB), "
        f"{row.peak / row.exported:.2f} x the exported weights; {row.seconds:.0f} s"
        + (f"   (at most {LIMIT})" if row.checked else "")
    )


if __name__ == "__main__":
    main()
