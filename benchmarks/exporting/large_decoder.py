"""Does a decoder of billions of weights export, compress and generate on a small machine?

    python -m benchmarks.exporting.large_decoder [--model gemma2-2b] [--recipe rtn ...] [--tokens 8] [--folder DIR]
        [--json]

The configuration is the default one of transformers for Gemma 2 (2.6 billion weights) or Phi-3 mini (3.8 billion), the
weights are random and stored in bfloat16. Each step is a command in a process of its own: its time, and the peak of the
resident memory of it and its children, mapped pages of files included. The limit is the memory of a machine of 24 GB.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from pydoc_data.topics import topics

import click
import msgspec

from benchmarks.exporting.memory import cost
from benchmarks.shared.random_decoder import parameters, random_decoder
from intaglio.display.progress import step

MODELS = {"gemma2-2b": "gemma2", "phi3-4b": "phi3"}
RECIPES = {"rtn": False, "gptq": True, "lut": True}  # which need a text
LIMIT = 24e9  # bytes
CHARACTERS = 8_000  # of the calibration text: the peak does not depend on it, the time does


class Row(msgspec.Struct):
    """A step: its time, its peak in bytes, and the size of what it wrote."""

    name: str
    seconds: float
    peak: int
    written: int


class Result(msgspec.Struct):
    """All steps of a model."""

    model: str
    parameters: int
    checkpoint: int  # bytes
    limit: float
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--model", type=click.Choice(list(MODELS)), default="gemma2-2b", show_default=True)
@click.option("--recipe", "recipes", type=click.Choice(list(RECIPES)), multiple=True, help="Default: all.")
@click.option("--tokens", default=8, show_default=True, help="Tokens to generate.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the models here, and reuse the checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(model: str, recipes: tuple[str, ...], tokens: int, folder: Path | None, as_json: bool) -> None:
    """Measure and print."""
    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        checkpoint = folder / "checkpoint"
        if not checkpoint.exists():
            with step("writing a checkpoint"):
                random_decoder(checkpoint, MODELS[model])
        text = folder / "text.txt"
        text.write_text("\n".join(topics.values())[:CHARACTERS])
        rows: list[Row] = []

        def run(name: str, command: list[str], output: Path | None = None) -> None:
            seconds, peak = cost([sys.executable, "-m", "intaglio", *command])
            rows.append(Row(name, seconds, peak, size(output) if output else 0))
            print(rows[-1], file=sys.stderr, flush=True)

        whole = folder / "bundle"
        run("export", ["export", str(checkpoint), "-o", str(whole), "--dtype", "float16", "--force"], whole)
        for recipe in recipes or RECIPES:
            smaller = folder / recipe
            given = ["--calibration", str(text)] if RECIPES[recipe] else []
            run(recipe, ["compress", str(whole), "-o", str(smaller), "--recipe", recipe, "--force", *given], smaller)
            run(
                f"generate, {recipe}",
                ["generate", str(smaller), "Once upon a time", "--max-new-tokens", str(tokens), "--ignore-eos"],
            )
        result = Result(model, parameters(checkpoint), size(checkpoint), LIMIT, rows)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(f"{model}: {result.parameters / 1e9:.2f} B parameters, {result.checkpoint / 1e9:.2f} GB in bfloat16")
    click.echo(f"{'':16} {'s':>8} {'peak, GB':>9} {'of 24 GB':>9} {'written, GB':>12}")
    click.echo("\n".join(map(line, rows)))


def line(row: Row) -> str:
    """A row for people."""
    share = row.peak / LIMIT
    return f"{row.name:16} {row.seconds:8.0f} {row.peak / 1e9:9.2f} {share:9.0%} {row.written / 1e9:12.2f}"


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
