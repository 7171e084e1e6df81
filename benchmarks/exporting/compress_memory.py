"""How much memory does compression need, relative to the weights?

    python -m benchmarks.exporting.compress_memory [--recipe NAME ...] [--hidden 1024] [--layers 16] [--samples 128]
        [--json]

A LLaMA of random float16 weights (270 million with the defaults) is exported, and compressed by each recipe in a
process of its own, calibrated on Python's manual. The peak is the process's largest resident memory, mapped pages of
files included; the limit is 1.5 times the float16 weights and the largest layer in float32.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import click
import msgspec

from benchmarks.shared import random_llama
from benchmarks.shared.contestants import fresh_process
from intaglio.display.progress import step

LIMIT = 1.5
SENSITIVITY_SAMPLES = 2  # its peak does not depend on the number
RECIPES = ("lut", "lut-sparse", "gptq", "awq", "rtn", "mixed")


class Row(msgspec.Struct):
    """One recipe, or the sensitivities that most recipes use; bytes."""

    name: str
    seconds: float
    peak: int
    start: int  # of the process, with our modules loaded
    weights: float  # peak in float16 weights


class Result(msgspec.Struct):
    """The table."""

    parameters: int
    weights: int  # bytes in float16
    layer: int  # bytes of the largest one in float32
    limit: int
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--recipe", "recipes", type=click.Choice(RECIPES), multiple=True, help="Recipes to run; default: all.")
@click.option("--hidden", type=click.IntRange(min=64), default=1024, show_default=True, help="Width of the model.")
@click.option("--layers", type=click.IntRange(min=1), default=16, show_default=True, help="Layers of the model.")
@click.option("--samples", type=click.IntRange(min=1), default=128, show_default=True, help="Texts of 512 tokens.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the models here, and reuse existing ones.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(recipes: tuple[str, ...], hidden: int, layers: int, samples: int, folder: Path | None, as_json: bool) -> None:
    """Measure and print."""
    shape = random_llama.Shape(hidden, hidden * 11 // 4, layers, hidden // 64)
    layer = 4 * max(map(prod, shape.weights().values()))
    weights = 2 * shape.parameters()
    result = Result(shape.parameters(), weights, layer, int(LIMIT * weights) + layer, [])
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        text = folder / "text.txt"
        text.write_text("\n".join(part for _, part in sorted(topics.items())), encoding="utf-8")
        bundle = folder / "float"
        if not bundle.exists():
            checkpoint = random_llama.checkpoint(folder / "checkpoint", shape)
            with step("exporting"):
                _in_process(_export, checkpoint, bundle)
        sensitivity = folder / "sensitivity.safetensors"
        with step("sensitivity"):
            result.rows.append(_row("sensitivity", weights, *_in_process(_sensitivity, bundle, text, sensitivity)))
        for recipe in recipes or RECIPES:
            options = (bundle, folder / recipe, recipe, text, sensitivity, samples)
            with step(recipe):
                result.rows.append(_row(recipe, weights, *_in_process(_compress, *options)))
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def _row(name: str, weights: int, seconds: float, start: int, peak: int) -> Row:
    return Row(name, seconds, peak, start, peak / weights)


def _in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with fresh_process() as pool:
        return pool.submit(function, *arguments).result()


def _export(checkpoint: Path, bundle: Path) -> None:
    from intaglio.exporters import export

    export(checkpoint, bundle, dtype="float16", check=False)


def _sensitivity(bundle: Path, text: Path, output: Path) -> tuple[float, int, int]:
    from intaglio.training.gradients.sensitivity import sensitivity

    start, begin = _memory("VmRSS"), time.perf_counter()
    sensitivity(bundle, output, text, samples=SENSITIVITY_SAMPLES, force=True)
    return time.perf_counter() - begin, start, _memory("VmHWM")


def _compress(
    bundle: Path, output: Path, recipe: str, text: Path, sensitivity: Path, samples: int
) -> tuple[float, int, int]:
    from intaglio.graph_passes import compress
    from intaglio.graph_passes.contract import Need
    from intaglio.graph_passes.recipes.loading import load_recipe

    path = output.with_suffix(".yaml")
    options = "" if recipe == "rtn" else f": {{samples: {samples}}}"
    path.write_text(f"passes: [{recipe.replace('-', '_')}{options}]\n")
    needs = {need for each in load_recipe(path)[1] for need in each.needs}
    calibration = text if Need.CALIBRATION in needs else None
    weighting = sensitivity if Need.SENSITIVITY in needs else None
    start, begin = _memory("VmRSS"), time.perf_counter()
    compress(bundle, output, path, force=True, calibration=calibration, sensitivity=weighting)
    return time.perf_counter() - begin, start, _memory("VmHWM")


def _memory(key: str) -> int:
    """Bytes of this process, by a line of its status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def table(result: Result) -> str:
    """The result for people."""
    lines = [
        f"{result.parameters / 1e6:.0f} M parameters: {result.weights / 1e6:.0f} MB in float16, the largest layer "
        f"{result.layer / 1e6:.0f} MB in float32; the limit is {result.limit / 1e6:.0f} MB",
        f"{'':14}{'seconds':>9}{'start':>9}{'peak':>10}{'x weights':>11}{'of the limit':>14}",
    ]
    for row in result.rows:
        lines.append(
            f"{row.name:14}{row.seconds:9.0f}{row.start / 1e6:6.0f} MB{row.peak / 1e6:7.0f} MB{row.weights:11.2f}"
            f"{row.peak / result.limit:14.2f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
