"""How fast are the speech recognisers on this processor, beside PyTorch, and what do they compute?

    python -m benchmarks.speech.speed [--size XS ...] [--conformer S ...] [--seconds 30] [--rounds 5] [--threads 2]
        [--json]

Squeezeformer and Conformer-CTC in their published sizes (thesis, table 5.2) with random weights, as the speed does not
depend on them. ONNX Runtime with our graph, after the recipe `fold` and without it, and PyTorch (eager,
inference mode) take turns in one process; times are the least of the rounds, a ratio is the median over the rounds.
Operations of products (2 for a multiply-add) are counted without the front end, beside those that the thesis prints.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec
import numpy as np
import torch

import intaglio
from benchmarks.speech.graph_operations import operations
from benchmarks.speech.sizes import CONFORMERS, SQUEEZEFORMERS, Size, conformer_of, squeezeformer_of
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.networks.speech.checkpoint import write_checkpoint
from intaglio.networks.speech.configuration import SpeechConfig
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.opening import open_engine

RATE = 16000


class Row(msgspec.Struct):
    """One network."""

    name: str
    million_parameters: float
    gflops: float  # of this graph
    printed_gflops: float  # in the thesis
    folded_ms: float  # ONNX Runtime
    exported_ms: float  # ONNX Runtime
    pytorch_ms: float
    ratio: float  # PyTorch's time by that of the folded graph
    real_time_factor: float  # of the folded graph
    max_difference: float  # of the log-probabilities, from PyTorch


class Results(msgspec.Struct):
    """All networks on this machine."""

    processor: str
    threads: int
    seconds: float  # of audio
    rows: list[Row]


def processor() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def timed(run: Callable[[], object]) -> float:
    """The seconds of one run after another: in the first, threads of the engine before it still wait busily."""
    run()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def checkpoint_of(network: SpeechNetwork, folder: Path) -> Path:
    """The network as a checkpoint."""
    folder.mkdir()
    tokens = ["<blank>", *(f"t{index}" for index in range(1, network.config.vocab_size))]
    write_checkpoint(folder, network.config, network.state_dict(), {"tokens": tokens, "blank": 0, "word_mark": "▁"})
    return folder


def measured(name: str, config: SpeechConfig, size: Size, seconds: float, rounds: int, threads: int) -> Row:
    """Measure one network."""
    torch.manual_seed(0)
    network = SpeechNetwork(config).eval()
    samples = int(seconds * RATE)
    audio = np.random.default_rng(0).normal(0, 0.1, (1, samples)).astype(np.float32)
    feeds = {"audio": audio, "lengths": np.array([samples])}
    tensors = [torch.from_numpy(array) for array in feeds.values()]
    with scratch_directory("speech") as folder:
        with step(f"exporting {name}"):
            intaglio.export(checkpoint_of(network, folder / "checkpoint"), folder / "bundle", check=False)
            intaglio.compress(folder / "bundle", folder / "folded", "fold")
        counts = operations(Bundle.open(folder / "bundle").model_path, feeds)
        with (
            open_engine(folder / "folded", threads=threads) as folded,
            open_engine(folder / "bundle", threads=threads) as exported,
            torch.inference_mode(),
        ):
            expected = network(*tensors)[0].numpy()
            difference = max(
                float(np.abs(engine.run(feeds)["log_probs"] - expected).max()) for engine in (folded, exported)
            )
            runs: list[Callable[[], object]] = [
                lambda: folded.run(feeds),
                lambda: exported.run(feeds),
                lambda: network(*tensors),
            ]
            times = [[timed(run) for run in runs] for _ in range(rounds)]
    ours, before, theirs = (min(each) for each in zip(*times, strict=True))
    return Row(
        name,
        round(sum(parameter.numel() for parameter in network.parameters()) / 1e6, 2),
        round(sum(count for module, count in counts.items() if module != "front_end") / 1e9, 1),
        size.gflops,
        round(ours * 1e3, 1),
        round(before * 1e3, 1),
        round(theirs * 1e3, 1),
        round(statistics.median(slow / fast for fast, _, slow in times), 2),
        round(ours / seconds, 4),
        difference,
    )


@click.command()
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(SQUEEZEFORMERS)), help="Default: all.")
@click.option("--conformer", "conformers", multiple=True, type=click.Choice(list(CONFORMERS)), help="Default: all.")
@click.option("--seconds", default=30.0, show_default=True, help="Length of the audio.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(
    sizes: tuple[str, ...], conformers: tuple[str, ...], seconds: float, rounds: int, threads: int, as_json: bool
) -> None:
    """Measure the chosen networks, or all of them."""
    torch.set_num_threads(threads)
    every = not sizes and not conformers
    chosen = [
        (f"squeezeformer {name}", squeezeformer_of(name), SQUEEZEFORMERS[name])
        for name in SQUEEZEFORMERS
        if every or name in sizes
    ]
    chosen += [
        (f"conformer {name}", conformer_of(name), CONFORMERS[name])
        for name in CONFORMERS
        if every or name in conformers
    ]
    rows = [measured(name, config, size, seconds, rounds, threads) for name, config, size in chosen]
    results = Results(processor(), threads, seconds, rows)
    if as_json:
        sys.stdout.write(msgspec.json.encode(results).decode() + "\n")
        return
    click.echo(f"{results.processor}, {threads} threads, {seconds:g} s of audio")
    heads = ("GFLOP", "printed", "folded ms", "exported ms", "torch ms", "ratio", "RTF", "max |diff|")
    click.echo(f"{'':18}{'M par.':>8}" + "".join(f"{head:>12}" for head in heads))
    for row in rows:
        click.echo(
            f"{row.name:18}{row.million_parameters:8.1f}{row.gflops:12.1f}{row.printed_gflops:12.1f}{row.folded_ms:12.1f}"
            f"{row.exported_ms:12.1f}{row.pytorch_ms:12.1f}{row.ratio:12.2f}{row.real_time_factor:12.4f}"
            f"{row.max_difference:12.1e}"
        )


if __name__ == "__main__":
    main()
