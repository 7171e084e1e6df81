"""What does a LoRA adapter beside the weights cost in a decode step, and what do different ones in a batch?

    python -m benchmarks.decoding.side_paths [--size NAME] [--recipe NAME] [--rank N] [--modules NAME,NAME] [--json]

The model is a LLaMA of random parameters, since speed does not depend on their values; adapters change all products of
its blocks, or those of `--modules`. A step of one row with the only adapter, and of eight rows with it, is compared
with that of the model alone; and a step of eight rows with eight adapters with one of eight rows that share one of
these eight. The numbers are processor time of one thread, so that other work on the machine counts less; sessions take
turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec
import numpy as np

from benchmarks.shared import random_llama
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.adapters.folder import WEIGHTS
from intaglio.runtime.adapters.settings import CONFIG
from intaglio.runtime.sessions.decoder import DecoderSession

SHAPES = {
    "small": random_llama.Shape(hidden=768, feed_forward=2048, layers=12, heads=12),  # 134 million
    "billion": random_llama.BILLION,
}
ROWS, PROMPT, STEPS, ROUNDS = 8, 32, 10, 8
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Result(msgspec.Struct):
    """Medians: milliseconds of processor time of a step, by rows and adapters; and their ratios."""

    milliseconds: dict[str, float]
    cost_of_one: float  # of a row with the only adapter, as a part of a step of the model alone
    cost_in_a_batch: float  # the same of eight rows
    eight_adapters: float  # throughput of eight rows with one each, to that of eight rows that share one


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--size", type=click.Choice([*SHAPES]), default="small", show_default=True, help="Of the model.")
@click.option("--recipe", default="rtn", show_default=True, help="Compress it first; none: float32.")
@click.option("--rank", default=16, show_default=True)
@click.option("--modules", default=",".join(LAYERS), show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def command(size: str, recipe: str, rank: int, modules: str, as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = random_llama.checkpoint(folder / "checkpoint", SHAPES[size], "float32")
        with step("exporting"):
            export(str(source), folder / "float", check=False)
            if recipe != "none":
                compress(folder / "float", folder / "bundle", recipe)
        folders = {f"adapter-{number}": folder / f"adapter-{number}" for number in range(ROWS)}
        for each in folders.values():
            write_adapter(each, SHAPES[size].weights(), rank, modules.split(","))
        result = measure(folder / ("float" if recipe == "none" else "bundle"), folders)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    for name, milliseconds in result.milliseconds.items():
        click.echo(f"{name:32}{milliseconds:8.2f} ms")
    click.echo(f"one adapter costs {result.cost_of_one:.1%} of a step, {result.cost_in_a_batch:.1%} of one of 8 rows")
    click.echo(f"eight adapters: {result.eight_adapters:.2f} of the throughput of one of them")


def write_adapter(folder: Path, weights: dict[str, tuple[int, ...]], rank: int, modules: list[str]) -> None:
    """An adapter of the `modules` with these weights, of random numbers, as peft saves it."""
    folder.mkdir()
    matrices: dict[str, tuple[int, ...]] = {}
    for name, shape in weights.items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules:
            matrices[f"base_model.model.{module}.lora_A.weight"] = (rank, shape[1])
            matrices[f"base_model.model.{module}.lora_B.weight"] = (shape[0], rank)
    random_llama.write_weights(matrices, folder / WEIGHTS, "float32")
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    (folder / CONFIG).write_bytes(msgspec.json.encode(settings))


def measure(bundle: Path, folders: dict[str, Path]) -> Result:
    """Open a session for each comparison, and let them take turns."""
    first = dict(list(folders.items())[:1])
    only, eight = Adapters.read(first), Adapters.read(folders)
    each = np.arange(ROWS) + 1
    kinds = {
        "1 row": (1, None, 0),
        "1 row, the only adapter": (1, only, 1),
        "8 rows": (ROWS, None, 0),
        "8 rows, the only adapter": (ROWS, only, 1),
        "8 rows, 1 of 8 adapters": (ROWS, eight, 1),
        "8 rows, 8 adapters": (ROWS, eight, each),
    }
    with ExitStack() as opened:
        sessions = {}
        for name, (rows, adapters, numbers) in kinds.items():
            session = DecoderSession.open(bundle, batch=rows, threads=1, spinning=False, adapters=adapters)
            sessions[name] = opened.enter_context(session)
            session.adapters[:] = numbers
            session.prefill([list(range(3, 3 + PROMPT))] * rows)
        rounds = [{name: decode(session) for name, session in sessions.items()} for _ in range(ROUNDS)]
    found = {name: statistics.median(each[name] for each in rounds) for name in kinds}
    return Result(
        found,
        found["1 row, the only adapter"] / found["1 row"] - 1,
        found["8 rows, the only adapter"] / found["8 rows"] - 1,
        found["8 rows, 1 of 8 adapters"] / found["8 rows, 8 adapters"],
    )


def decode(session: DecoderSession) -> float:
    """Milliseconds of the fastest of some decode steps; the cache is as before."""
    seconds = []
    for _ in range(STEPS):
        began = time.thread_time()
        session.append([[7]] * session.batch, [1] * session.batch)
        seconds.append(time.thread_time() - began)
        session.rollback(PROMPT)
    return min(seconds) * 1e3


if __name__ == "__main__":
    command()
