"""What does it cost to trace a decoder, relative to writing its graph?

    python -m benchmarks.exporting.traced_decoder [--billions 0.25] [--stored bfloat16] [--tokens 64]
        [--peer NAME=PROGRAM ...]

A LLaMA of random weights is exported twice with the check, each in a process of its own: once by the family that writes
the graph, once by tracing it. Time and the peak of the resident memory include the whole command and its children; see
memory.py. Then both bundles write the same text, in turn, in one process. The limits: twice the
time, 1.3 times the memory, 0.98 times the speed; and the same tokens.

`--peer mobius=PROGRAM` and `--peer optimum-onnx=PROGRAM` export the same checkpoint by `mobius` and `optimum-cli`,
which need other versions of the libraries, and so an environment of their own. mobius does not check what it writes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.exporting.memory import SHAPES, cost
from benchmarks.shared import random_llama
from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.display.progress import step
from intaglio.runtime import TextGenerator

WAYS = ("written", "traced")
ROUNDS = 7
# Exports by tracing where no written family takes a model.
TRACED = (
    "from intaglio.exporters.decoders.written.family import DecoderFamily; "
    "DecoderFamily.takes = lambda family, config: False; "
    "from intaglio.cli import main; main()"
)
PEERS = {
    "mobius": ["build", "--config", "CHECKPOINT", "OUTPUT"],
    "optimum-onnx": ["export", "onnx", "--task", "text-generation-with-past", "-m", "CHECKPOINT", "OUTPUT"],
}


class Peer(msgspec.Struct):
    """The export of another tool; ratios are of ours, traced, to it."""

    name: str
    seconds: float
    peak: int  # bytes
    time_ratio: float
    memory_ratio: float


class Result(msgspec.Struct):
    """Both ways, each in the order of `WAYS`; ratios are of the traced one to the written one."""

    parameters: int
    nodes: list[int]
    seconds: list[float]
    peak: list[int]  # bytes
    tokens_per_second: list[float]
    time_ratio: float
    memory_ratio: float
    speed_ratio: float
    same_tokens: bool
    peers: list[Peer]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--billions", type=click.Choice(list(SHAPES)), default="0.25", show_default=True)
@click.option("--stored", type=click.Choice(list(random_llama.STORED)), default="bfloat16", show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Tokens of each text.")
@click.option("--peer", "peers", multiple=True, metavar="NAME=PROGRAM", help="mobius or optimum-onnx, and its program.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(billions: str, stored: str, tokens: int, peers: tuple[str, ...], as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = random_llama.checkpoint(Path(folder) / "checkpoint", SHAPES[billions], stored)
        bundles = [Path(folder) / way for way in WAYS]
        costs = []
        for way, bundle in zip(WAYS, bundles, strict=True):
            with step(f"exporting, {way}"):
                costs.append(export(checkpoint, bundle, way))
        with step("writing texts"):
            speeds, texts = speed(bundles, tokens)
        nodes = [len(load(Bundle.open(bundle).model_path).graph) for bundle in bundles]
        others = [peer(*each.split("=", 1), checkpoint, Path(folder) / "peer", costs[1]) for each in peers]
    (first, low), (second, high) = costs
    result = Result(
        SHAPES[billions].parameters(), nodes, [first, second], [low, high], speeds,
        second / first, high / low, speeds[1] / speeds[0], texts[0] == texts[1], others,
    )  # fmt: skip
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(f"LLaMA of {result.parameters / 1e9:.2f} B parameters, {stored}: written, traced, ratio, limit")
    click.echo(f"  nodes              {nodes[0]:8d} {nodes[1]:8d}")
    click.echo(f"  export, s          {first:8.1f} {second:8.1f} {result.time_ratio:6.2f}   <= 2")
    click.echo(f"  peak memory, GB    {low / 1e9:8.2f} {high / 1e9:8.2f} {result.memory_ratio:6.2f}   <= 1.3")
    click.echo(f"  tokens a second    {speeds[0]:8.1f} {speeds[1]:8.1f} {result.speed_ratio:6.3f}   >= 0.98")
    click.echo(f"  same tokens        {result.same_tokens}")
    for each in others:
        click.echo(
            f"  {each.name}: {each.seconds:.1f} s and {each.peak / 1e9:.2f} GB; traced is "
            f"{each.time_ratio:.2f} of the time and {each.memory_ratio:.2f} of the memory"
        )


def export(checkpoint: Path, output: Path, way: str) -> tuple[float, int]:
    """Seconds and peak bytes of an export in a process of its own."""
    program = ["-c", TRACED] if way == "traced" else ["-m", "intaglio"]
    return cost([sys.executable, *program, "export", str(checkpoint), "-o", str(output)])


def peer(name: str, program: str, checkpoint: Path, output: Path, traced: tuple[float, int]) -> Peer:
    """The cost of an export by another tool; `traced`: that of ours."""
    with step(f"exporting, {name}"):
        paths = {"CHECKPOINT": str(checkpoint), "OUTPUT": str(output / name)}
        seconds, peak = cost([program, *(paths.get(word, word) for word in PEERS[name])])
    return Peer(name, seconds, peak, traced[0] / seconds, traced[1] / peak)


def speed(bundles: list[Path], tokens: int) -> tuple[list[float], list[list[int]]]:
    """Tokens a second, the median of `ROUNDS` in turn, and the tokens of each bundle."""
    generators = [TextGenerator(bundle, max_new_tokens=tokens, ignore_eos=True) for bundle in bundles]
    found: list[list[float]] = [[] for _ in bundles]
    texts: list[list[int]] = [[] for _ in bundles]
    for _ in range(ROUNDS):
        for index, generator in enumerate(generators):
            (run,) = generator.generate_many(["Once upon a time"])
            result = run.result()
            found[index].append(result.tokens_per_second)
            texts[index] = result.tokens
    for generator in generators:
        generator.close()
    return [statistics.median(each) for each in found], texts


if __name__ == "__main__":
    main()
