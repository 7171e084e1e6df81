"""How fast are a decoder's float weights by our kernel, against ONNX Runtime's product, and in 16 bits?

    python -m benchmarks.decoding.float_products [--size NAME] [--threads N]... [--rounds N] [--folder FOLDER] [--json]

A LLaMA of random weights in float32, by ONNX Runtime's MatMul and by PackedMatMul, and after the recipes
bfloat16-weights and float16-weights. All take turns in each round: a step of one token, one of five as in a review of
drafts, and a prompt. The limits: 1.3 times ONNX Runtime's tokens a second in float32, and 1.8 times our float32 in
bfloat16, both for one token; and what the memory allows, beside the bytes that a step of one token reads.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import click
import msgspec
from onnx import TensorProto

from benchmarks.encoding.integer_encoder import processor
from benchmarks.shared import random_llama
from intaglio.bundle.model_file import outline
from intaglio.display.progress import step
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.plugins.native.memory_bandwidth import Memory
from intaglio.runtime.engines.onnxruntime import engine
from intaglio.runtime.sessions.decoder import DecoderSession

SHAPES = {
    "small": random_llama.Shape(hidden=768, feed_forward=2048, layers=12, heads=12),  # 134 million
    "billion": random_llama.BILLION,
}
PEER, OURS = "ONNX Runtime, float32", "float32"
RECIPES = {"bfloat16": "bfloat16-weights", "float16": "float16-weights"}
STEPS = {"1 token": (1, 5), "5 tokens": (5, 5), "a prompt of 512": (512, 1)}  # tokens, and runs in a round
PAST, REVIEWED = 32, 5  # tokens before, and those of a step whose logits are all wanted


class Row(msgspec.Struct):
    """Medians over the rounds of the fastest run of each: milliseconds, and ratios of the rounds."""

    name: str
    threads: int
    milliseconds: dict[str, float]
    to_peer: dict[str, float]  # the peer's time by this one's
    to_ours: dict[str, float]  # the time of ours in float32 by this one's
    bandwidth: float  # of one token: the part of the memory's


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--size", type=click.Choice([*SHAPES]), default="billion", show_default=True, help="Of the model.")
@click.option("--threads", multiple=True, type=int, default=(1, 2), show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the bundles here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(size: str, threads: Sequence[int], rounds: int, folder: Path | None, as_json: bool) -> None:
    """Measure and print."""
    machine = processor()
    with tempfile.TemporaryDirectory() as temporary:
        made = bundles(folder or Path(temporary), SHAPES[size])
        rows = [row for count in threads for row in measure(made, count, rounds)]
    if as_json:
        print(msgspec.json.encode({"processor": machine, "rows": rows}).decode())
        return
    print(f"{machine.name}, {machine.cores} processors, load {machine.load:.1f}")
    for row in rows:
        print(f"{row.name}, {row.threads} threads: {row.bandwidth:.2f} of the bandwidth with 1 token")
        for kind, milliseconds in row.milliseconds.items():
            ratios = f"{row.to_peer[kind]:5.2f} x ONNX Runtime {row.to_ours[kind]:5.2f} x our float32"
            print(f"    {kind:16}{milliseconds:9.1f} ms {ratios}")


def bundles(folder: Path, shape: random_llama.Shape) -> dict[str, Path]:
    """The bundle of each kind, made where it is not there yet."""
    found = {OURS: folder / "float32", **{name: folder / name for name in RECIPES}}
    if not found[OURS].exists():
        source = random_llama.checkpoint(folder / "checkpoint", shape, "float32")
        with step("exporting"):
            export(str(source), found[OURS], check=False)
    for name, recipe in RECIPES.items():
        if not found[name].exists():
            compress(found[OURS], found[name], recipe)
    return found


def measure(made: dict[str, Path], threads: int, rounds: int) -> list[Row]:
    """Open all, and let them take turns."""
    memory = Memory()
    with ExitStack() as opened:
        with patch.object(engine, "pack_products", lambda model: None):
            sessions = {PEER: opened.enter_context(DecoderSession.open(made[OURS], threads=threads))}
        for name, bundle in made.items():
            sessions[name] = opened.enter_context(DecoderSession.open(bundle, threads=threads))
        for session in sessions.values():
            session.prefill([list(range(3, 3 + PAST))])
        times: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in STEPS} for name in sessions}
        speeds = []
        for _ in range(rounds):
            speeds.append(max(memory.read(threads) for _ in range(3)))
            for kind, (tokens, runs) in STEPS.items():
                for name, session in sessions.items():
                    times[name][kind].append(min(appended(session, tokens) for _ in range(runs)))
    sizes = {name: read_in_a_step(made.get(name, made[OURS])) for name in sessions}
    return [
        Row(
            name,
            threads,
            {kind: statistics.median(each) * 1e3 for kind, each in times[name].items()},
            *({kind: ratio(times[other][kind], times[name][kind]) for kind in STEPS} for other in (PEER, OURS)),
            statistics.median(
                sizes[name] / seconds / speed for seconds, speed in zip(times[name]["1 token"], speeds, strict=True)
            ),
        )
        for name in sessions
    ]


def read_in_a_step(bundle: Path) -> int:
    """Bytes of the weights but the embedding, of which a step reads a row."""
    table = next(each for each in outline(bundle / "model.onnx").graph.initializer if "embed_tokens" in each.name)
    itemsize = 4 if table.data_type == TensorProto.FLOAT else 2
    return sum(file.stat().st_size for file in bundle.glob("model.onnx*")) - table.dims[0] * table.dims[1] * itemsize


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median over the rounds."""
    return statistics.median(one / other for one, other in zip(theirs, ours, strict=True))


def appended(session: DecoderSession, tokens: int) -> float:
    """Seconds of a step of some tokens; the cache is as before."""
    begin = time.perf_counter()
    session.append([[7] * tokens], [tokens if tokens <= REVIEWED else 1])
    seconds = time.perf_counter() - begin
    session.rollback(PAST)
    return seconds


if __name__ == "__main__":
    main()
