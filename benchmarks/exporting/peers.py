"""What does it cost to export a decoder, relative to other tools?

    python -m benchmarks.exporting.peers [--billions 0.25] [--stored bfloat16] [--peer NAME=PROGRAM ...] [--json]

A LLaMA of random weights is exported with the check, and by each peer, each in a process of its own. Time and the peak
of the resident memory include the whole command and its children; see memory.py.

`--peer mobius=PROGRAM` and `--peer optimum-onnx=PROGRAM` export the same checkpoint by `mobius` and `optimum-cli`,
which need other versions of the libraries, and so an environment of their own. mobius does not check what it writes.
"""

from __future__ import annotations

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

PEERS = {
    "mobius": ["build", "--config", "CHECKPOINT", "OUTPUT"],
    "optimum-onnx": ["export", "onnx", "--task", "text-generation-with-past", "-m", "CHECKPOINT", "OUTPUT"],
}


class Peer(msgspec.Struct):
    """The export of another tool; ratios are of ours to it."""

    name: str
    seconds: float
    peak: int  # bytes
    time_ratio: float
    memory_ratio: float


class Result(msgspec.Struct):
    """Our export, and those of others."""

    parameters: int
    nodes: int
    seconds: float
    peak: int  # bytes
    peers: list[Peer]


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--billions", type=click.Choice(list(SHAPES)), default="0.25", show_default=True)
@click.option("--stored", type=click.Choice(list(random_llama.STORED)), default="bfloat16", show_default=True)
@click.option("--peer", "peers", multiple=True, metavar="NAME=PROGRAM", help="mobius or optimum-onnx, and its program.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(billions: str, stored: str, peers: tuple[str, ...], as_json: bool) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = random_llama.checkpoint(Path(folder) / "checkpoint", SHAPES[billions], stored)
        bundle = Path(folder) / "bundle"
        with step("exporting"):
            seconds, peak = cost([sys.executable, "-m", "intaglio", "export", str(checkpoint), "-o", str(bundle)])
        nodes = len(load(Bundle.open(bundle).model_path).graph)
        others = [peer(*each.split("=", 1), checkpoint, Path(folder) / "peer", (seconds, peak)) for each in peers]
    result = Result(SHAPES[billions].parameters(), nodes, seconds, peak, others)
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(f"LLaMA of {result.parameters / 1e9:.2f} B parameters, {stored}: {nodes} nodes")
    click.echo(f"  {seconds:.1f} s and {peak / 1e9:.2f} GB with the check")
    for each in others:
        click.echo(
            f"  {each.name}: {each.seconds:.1f} s and {each.peak / 1e9:.2f} GB; ours is "
            f"{each.time_ratio:.2f} of the time and {each.memory_ratio:.2f} of the memory"
        )


def peer(name: str, program: str, checkpoint: Path, output: Path, ours: tuple[float, int]) -> Peer:
    """The cost of an export by another tool; `ours`: that of ours."""
    with step(f"exporting, {name}"):
        paths = {"CHECKPOINT": str(checkpoint), "OUTPUT": str(output / name)}
        seconds, peak = cost([program, *(paths.get(word, word) for word in PEERS[name])])
    return Peer(name, seconds, peak, ours[0] / seconds, ours[1] / peak)


if __name__ == "__main__":
    main()
