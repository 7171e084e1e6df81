"""What does a second worker add where a model is compressed by an executor, and are the bytes the same?

    python -m benchmarks.cluster.workers [--recipe gptq ...] [--executor processes ...] [--layers N | --bundle DIR]
        [--samples N] [--rounds N] [--json]

A LLaMA of random weights with the shape of SmolLM2-135M, or a bundle that is given, such as SmolLM2 itself
(`examples/chat_model.py`), is compressed with one worker and then with two, each of one thread: processes of this
machine, and nodes of a Ray cluster that is started here (`build/ray/bin/python`, which `make ray-test` makes). The time
includes all of `intaglio compress`, called from Python, and the start of the processes; the ratio is the median over
the rounds. Two workers need two cores that are idle. The target is 1.7.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

import click
import msgspec

from benchmarks.shared.random_decoder import random_decoder
from benchmarks.shared.serving import verdict
from intaglio.bundle.inspection import inspect
from intaglio.compression import compress
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.extras import load

TARGET = 1.7
SHAPE = {
    "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3,
    "vocab_size": 49_152, "tie_word_embeddings": True,
}  # fmt: skip
CHARACTERS = 2500  # of the calibration text for each chunk of 512 tokens
STORE = 1 << 30  # bytes of a node's object store


class Row(msgspec.Struct):
    """Seconds with one worker and with two, the medians of the rounds, and the median of the rounds' ratios."""

    recipe: str
    executor: str
    one: float
    two: float
    ratio: float
    ratios: list[float]


class Result(msgspec.Struct):
    """Everything printed. `load`: of the machine, before: processes that ran or waited, on average over a minute."""

    parameters: int
    processors: int
    load: float
    rows: list[Row]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--recipe", "recipes", type=click.Choice(["gptq", "lut-sparse"]), multiple=True, help="Default: both.")
@click.option(
    "--executor", "executors", type=click.Choice(["processes", "ray"]), multiple=True, help="Default: processes."
)
@click.option("--layers", default=30, show_default=True, help="Of the random model.")
@click.option("--bundle", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Instead of that.")
@click.option("--samples", default=128, show_default=True, help="Texts of 512 tokens: as many as gptq takes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    recipes: tuple[str, ...], executors: tuple[str, ...], layers: int, bundle: Path | None, samples: int, rounds: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Measure and print."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if bundle is None:
            bundle = folder / "bundle"
            checkpoint = random_decoder(folder / "checkpoint", "llama", num_hidden_layers=layers, **SHAPE)
            export(checkpoint, bundle, check=False)
        (folder / "text.txt").write_text("\n".join(topics.values())[: CHARACTERS * samples])
        rows = [
            measured(bundle, folder, recipe, executor, rounds)
            for executor in executors or ["processes"]
            for recipe in recipes or ["gptq", "lut-sparse"]
        ]
        result = Result(inspect(bundle).parameters, len(os.sched_getaffinity(0)), load_before, rows)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def measured(bundle: Path, folder: Path, recipe: str, executor: str, rounds: int) -> Row:
    """Compress `bundle` with one worker and with two, `rounds` times, into `folder`.

    Raises `ClickException` unless all bytes are the same.
    """
    times: list[list[float]] = []
    written = set()
    for number in range(rounds):
        times.append([])
        for count in (1, 2):
            with step(f"{recipe}, {executor}, {count}, round {number + 1}"), workers(executor, count) as option:
                start = time.perf_counter()
                compress(bundle, folder / "out", recipe, calibration=folder / "text.txt", executor=option,
                         threads=count, force=True)  # fmt: skip
                times[-1].append(time.perf_counter() - start)
            print(recipe, option, f"{times[-1][-1]:.1f} s", file=sys.stderr, flush=True)
            written.add(digest(folder / "out"))
    if len(written) != 1:
        raise click.ClickException(f"{recipe}, {executor}: the bundles differ")
    ratios = [one / two for one, two in times]
    medians = [statistics.median(each) for each in zip(*times, strict=True)]
    return Row(recipe, executor, *medians, statistics.median(ratios), ratios)


@contextmanager
def workers(executor: str, count: int) -> Iterator[str]:
    """What `--executor` is, for so many workers; a Ray cluster has a node for each."""
    if executor == "processes":
        yield f"processes:{count}"
        return
    load("ray")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the nodes find this code
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": STORE}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        for _ in range(1, count):
            cluster.add_node(**node)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield "ray"
    finally:
        os.environ.pop("RAY_ADDRESS", None)
        cluster.shutdown()


def digest(folder: Path) -> str:
    """The hash of the manifest, the graph and the weights."""
    found = hashlib.sha256()
    for path in [folder / "bundle.json", *sorted(folder.glob("model.onnx*"))]:
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def table(result: Result) -> str:
    """The result for people."""
    lines = [
        f"{result.parameters / 1e6:.0f} million weights, {result.processors} processors, load before {result.load:.1f}",
        "",
        "recipe      executor   1 worker  2 workers  ratio",
    ]
    for row in result.rows:
        found = ", ".join(f"{ratio:.2f}" for ratio in row.ratios)
        lines.append(f"{row.recipe:11} {row.executor:9} {row.one:8.1f} s {row.two:8.1f} s {row.ratio:6.2f} ({found})")
    lines += ["", *(verdict(f"{row.recipe}, {row.executor}", row.ratio, TARGET) for row in result.rows)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
