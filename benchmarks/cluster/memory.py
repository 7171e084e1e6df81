"""Does the memory that compressing takes, here and in a worker, grow with the number of a model's layers?

    python -m benchmarks.cluster.memory [--recipe gptq ...] [--executor processes:1] [--layers N] [--samples N] [--json]

LLaMAs of random weights, of so many layers and three times as many, are compressed, each in a process of its own.
Memory is what no file backs (RssAnon of the kernel, every 20 ms), as mapped pages of weights can be dropped at any
time: of the process that compresses, and of the largest worker. The growth is that from the small to the large model,
in parts of the added layers' weights in float32. The target is at most 0.05: what the graph says of a layer.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import click
import msgspec
import psutil

from benchmarks.shared.contestants import fresh_process
from benchmarks.shared.random_decoder import parameters, random_decoder
from benchmarks.shared.serving import verdict
from intaglio.display.progress import step

TARGET = 0.05
SHAPE = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "vocab_size": 32_000,
         "tie_word_embeddings": True}  # fmt: skip
SECONDS = 0.02
CHARACTERS = 4096  # of 512 tokens, or more; sensitivities are computed on all of the text


class Row(msgspec.Struct):
    """Bytes of the compressing process and of its largest worker, for both models, and their growth."""

    recipe: str
    here: list[int]
    worker: list[int]
    growth: float
    growth_of_worker: float


class Result(msgspec.Struct):
    """Everything printed. `parameters`: of both models."""

    executor: str
    layers: list[int]
    parameters: list[int]
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--recipe", "recipes", multiple=True, default=["gptq", "lut-sparse"], show_default=True)
@click.option("--executor", default="processes:1", show_default=True)
@click.option("--layers", default=8, show_default=True, help="Of the smaller model. Peaks vary by some 30 MB.")
@click.option("--samples", default=8, show_default=True, help="Texts of 512 tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(recipes: tuple[str, ...], executor: str, layers: int, samples: int, as_json: bool) -> None:
    """Measure and print."""
    depths = [layers, 3 * layers]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = "\n".join(part for _, part in sorted(topics.items()))
        (folder / "text.txt").write_text(text[: samples * CHARACTERS])
        for depth in depths:
            checkpoint = random_decoder(folder / f"checkpoint-{depth}", "llama", num_hidden_layers=depth, **SHAPE)
            with step(f"exporting {depth} layers"), fresh_process() as pool:
                pool.submit(exported, checkpoint, folder / f"bundle-{depth}").result()
        sizes = [parameters(folder / f"checkpoint-{depth}") for depth in depths]
        added = 4 * (sizes[1] - sizes[0])
        result = Result(executor, depths, sizes, [])
        for recipe in recipes:
            found = []
            for depth in depths:
                with step(f"{recipe}, {depth} layers"), fresh_process() as pool:
                    found.append(pool.submit(peaks, folder, depth, recipe, samples, executor).result())
            here, worker = zip(*found, strict=True)
            growth, of_worker = ((large - small) / added for small, large in (here, worker))
            result.rows.append(Row(recipe, list(here), list(worker), growth, of_worker))
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def exported(checkpoint: Path, bundle: Path) -> None:
    """Export in a process of its own."""
    from intaglio.exporters import export

    export(checkpoint, bundle, check=False)


def peaks(folder: Path, depth: int, recipe: str, samples: int, executor: str) -> tuple[int, int]:
    """Compress; return the most memory of this process and of one of its children."""
    from intaglio.compression import compress

    path = folder / f"{recipe}.yaml"
    path.write_text(f"passes: [{{{recipe.replace('-', '_')}: {{samples: {samples}}}}}]")
    with watched() as found:
        compress(folder / f"bundle-{depth}", folder / "out", path, calibration=folder / "text.txt", executor=executor,
                 force=True)  # fmt: skip
    here = found.pop(os.getpid())
    return here, max(found.values(), default=0)


@contextmanager
def watched() -> Iterator[dict[int, int]]:
    """The most memory of this process and its children while the block runs: process -> bytes."""
    found: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SECONDS):
            for process in (os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))):
                found[process] = max(found.get(process, 0), anonymous(process))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def anonymous(process: int) -> int:
    """Bytes of a process that no file backs; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")), 0)


def table(result: Result) -> str:
    """The result for people."""
    small, large = (f"{size / 1e6:.0f} M" for size in result.parameters)
    lines = [
        f"{result.executor}; {result.layers[0]} layers, {small} weights; {result.layers[1]} layers, {large} weights",
        "",
        f"{'recipe':12}{'here':>18}{'worker':>18}{'growth':>9}{'of worker':>11}",
    ]
    for row in result.rows:
        here, worker = (f"{a / 1e6:.0f} -> {b / 1e6:.0f} MB" for a, b in (row.here, row.worker))
        lines.append(f"{row.recipe:12}{here:>18}{worker:>18}{row.growth:9.3f}{row.growth_of_worker:11.3f}")
    grown = ((row.recipe, max(row.growth, row.growth_of_worker)) for row in result.rows)
    return "\n".join([*lines, "", *(verdict(name, value, TARGET, at_least=False) for name, value in grown)])


if __name__ == "__main__":
    main()
