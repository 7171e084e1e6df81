"""How much faster is a Squeezeformer whose scales and batch normalisations are folded into its weights?

    python -m benchmarks.speech.folding [--size SM] [--seconds 30] [--rounds 15] [--threads 2] [--json]

The exported graph and the one after the recipe `fold` (the thesis, section 5.2: zero cost at inference) with random
weights, in one process. They take turns, and the one that begins changes from round to round. Times are the least of
the rounds; the ratio is the median over the rounds, with its quartiles. Only nodes that ONNX Runtime does not remove
itself make a difference: it folds a batch normalisation into the convolution before it, and no scale.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from pathlib import Path

import click
import msgspec
import numpy as np
import torch

import intaglio
from benchmarks.speech.sizes import SQUEEZEFORMERS, squeezeformer_of
from benchmarks.speech.speed import RATE, checkpoint_of, processor, timed
from intaglio.bundle.model_file import load
from intaglio.display.progress import step
from intaglio.graph_passes import compress
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.opening import open_engine

TARGET = 1.03  # times the speed of the exported graph
ELEMENTWISE = ("Add", "BatchNormalization", "Mul")  # what folding removes


class Result(msgspec.Struct):
    """Both graphs on this machine."""

    processor: str
    load: float  # processes that ran or waited before measuring, averaged over a minute
    threads: int
    size: str
    seconds: float  # of audio
    rounds: int
    removed: dict[str, int]  # operator -> nodes that the folded graph has not
    exported_ms: float
    folded_ms: float
    ratio: float  # of the speeds
    quartiles: tuple[float, float]
    max_difference: float  # of the log-probabilities


def random_network(size: str) -> SpeechNetwork:
    """A network whose scales and statistics are not the initial ones."""
    torch.manual_seed(0)
    network = SpeechNetwork(squeezeformer_of(size)).eval().requires_grad_(False)
    for name, tensor in network.state_dict().items():
        if ".scaling." in name:
            tensor.add_(torch.randn_like(tensor) / 4)
        elif "running" in name:
            tensor.uniform_(0.5, 1.5)
    return network


def operators(bundle: Path) -> Counter[str]:
    """The elementwise operators of a bundle's graph, counted."""
    return Counter(node.op_type for node in load(bundle / "model.onnx").graph if node.op_type in ELEMENTWISE)


def measured(size: str, seconds: float, rounds: int, threads: int) -> Result:
    """Measure one size."""
    load_before, samples = os.getloadavg()[0], int(seconds * RATE)
    audio = np.random.default_rng(0).normal(0, 0.1, (1, samples)).astype(np.float32)
    feeds = {"audio": audio, "lengths": np.array([samples])}
    with scratch_directory("speech-folding") as folder:
        exported, folded = folder / "exported", folder / "folded"
        with step(f"exporting {size}"):
            intaglio.export(checkpoint_of(random_network(size), folder / "checkpoint"), exported, check=False)
            compress(exported, folded, "fold")
        removed = dict(operators(exported) - operators(folded))
        with open_engine(exported, threads=threads) as first, open_engine(folded, threads=threads) as second:
            outputs = [engine.run(feeds)["log_probs"] for engine in (first, second)]
            times: list[tuple[float, float]] = []
            for index in range(rounds):
                order = (first, second) if index % 2 == 0 else (second, first)
                taken = {engine: timed(lambda engine=engine: engine.run(feeds)) for engine in order}
                times.append((taken[first], taken[second]))
    low, middle, high = statistics.quantiles((before / after for before, after in times), n=4)
    before, after = (min(each) for each in zip(*times, strict=True))
    return Result(
        processor(),
        load_before,
        threads,
        size,
        seconds,
        rounds,
        removed,
        round(before * 1e3, 1),
        round(after * 1e3, 1),
        round(middle, 3),
        (round(low, 3), round(high, 3)),
        float(np.abs(outputs[0] - outputs[1]).max()),
    )


@click.command()
@click.option("--size", type=click.Choice(list(SQUEEZEFORMERS)), default="SM", show_default=True)
@click.option("--seconds", default=30.0, show_default=True, help="Length of the audio.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(size: str, seconds: float, rounds: int, threads: int, as_json: bool) -> None:
    """Measure and print."""
    found = measured(size, seconds, rounds, threads)
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    click.echo(f"{found.processor}; {threads} threads; load {found.load:.1f} at the start")
    gone = ", ".join(f"{count} {name}" for name, count in sorted(found.removed.items()))
    click.echo(f"Squeezeformer {size}, {seconds:g} s of audio, {rounds} rounds; folded away: {gone}")
    click.echo(f"exported {found.exported_ms:.1f} ms, folded {found.folded_ms:.1f} ms")
    low, high = found.quartiles
    reached = "reached" if found.ratio >= TARGET else "missed"
    click.echo(f"{found.ratio:.3f} times as fast (quartiles {low:.3f} to {high:.3f}); target {TARGET}: {reached}")
    click.echo(f"largest difference of a log-probability: {found.max_difference:.1e}")


if __name__ == "__main__":
    main()
