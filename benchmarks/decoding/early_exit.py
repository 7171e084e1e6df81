"""Early exits: speed and quality of BiLD with one exit, and of CALM with one exit per block.

    python -m benchmarks.decoding.early_exit --layer-exit CHECKPOINT --every-layer CHECKPOINT --text FILE [--json]

See the thesis, figure C.1. `intaglio train early-exit` made the checkpoints, without and with --every-layer.
They were trained differently, so each configuration is compared with its own checkpoint as a plain model: all blocks,
and no exit in the graph. `speed` is the plain model's time over theirs, `bleu` the similarity to the plain model's
texts, and `blocks` the mean number of blocks per token: with CALM those that it went through, with BiLD those of all
passes of both models, divided by the generated tokens.

Prompts are windows of the text. Every text is generated with all configurations in turn, one text at a time, so that
all run under the same load.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from benchmarks.decoding.ways import Way, write_in_turn
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.errors import UsageError
from intaglio.exporters import export
from intaglio.networks.early_exit import EVERY, RECORD, read_early_exit
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompts import read_prompts
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.tokenizer import read_backend
from intaglio.validation.measures.text_quality import text_quality


class Row(msgspec.Struct):
    """One decoding configuration for all texts."""

    way: str
    speed: float  # over the plain model of the same checkpoint
    milliseconds: float  # per text
    bleu: float  # against the plain model's texts
    same: float  # fraction of texts equal to the plain model's
    blocks: float  # blocks run per generated token


class Exits(msgspec.Struct):
    """All results."""

    layers: int  # blocks of the models
    exit_layer: int  # blocks before BiLD's exit
    threads: int
    texts: int
    rows: list[Row]


@dataclass
class Compared(Way):
    """A decoding configuration, and the plain model to compare with; None: it is the plain model."""

    plain: Compared | None = None


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--layer-exit", required=True, type=click.Path(path_type=Path), help="Checkpoint for BiLD, one exit.")
@click.option("--every-layer", required=True, type=click.Path(path_type=Path), help="Checkpoint for CALM, all exits.")
@click.option("--text", required=True, type=click.Path(path_type=Path), help="UTF-8 text to take prompts from.")
@click.option("--fallback", "fallbacks", multiple=True, type=float, default=(0.2, 0.5, 0.8), show_default=True)
@click.option("--rollback", "rollbacks", multiple=True, type=float, default=(0.5, 1.5), show_default=True)
@click.option("--saturation", "saturations", multiple=True, type=float, default=(0.7, 0.9, 0.98), show_default=True)
@click.option("--decay", "decays", multiple=True, type=float, default=(0.0, 4.0), show_default=True)
@click.option("--prompt-tokens", default=32, show_default=True, help="Tokens per prompt.")
@click.option("-n", "--max-new-tokens", default=128, show_default=True, help="Maximum tokens per text.")
@click.option("--texts", type=click.IntRange(min=1), default=20, show_default=True, help="Number of texts to generate.")
@click.option("--threads", type=click.IntRange(min=1), help="Processor threads.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on one line.")
def main(
    layer_exit: Path,
    every_layer: Path,
    text: Path,
    fallbacks: Sequence[float],
    rollbacks: Sequence[float],
    saturations: Sequence[float],
    decays: Sequence[float],
    prompt_tokens: int,
    max_new_tokens: int,
    texts: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Export, generate, score, print."""
    count = threads or len(os.sched_getaffinity(0))
    common: dict[str, Any] = {"max_new_tokens": max_new_tokens, "threads": count, "ignore_eos": True}
    with tempfile.TemporaryDirectory() as made, ExitStack() as opened:
        folder = Path(made)
        bundles = {
            "bild": exported(layer_exit, folder / "bild", every=False),
            "bild plain": exported(without_exits(layer_exit, folder), folder / "bild plain", every=None),
            "calm": exported(every_layer, folder / "calm", every=True),
            "calm plain": exported(without_exits(every_layer, folder), folder / "calm plain", every=None),
        }
        decoder = decoder_of(Bundle.open(bundles["bild"]))
        prompts = read_prompts(text, "--text", read_backend(Bundle.open(bundles["bild"])), prompt_tokens)
        chosen = [prompts[at] for at in np.linspace(0, len(prompts) - 1, min(texts, len(prompts))).astype(int)]

        def way(name: str, bundle: str, plain: Compared | None, **options: Any) -> Compared:
            generator = opened.enter_context(TextGenerator(bundles[bundle], **common, **options))
            return Compared(name, generator, plain=plain)

        plain = way("plain, trained with one exit", "bild plain", None)
        ways = [plain]
        for fallback, rollback in itertools.product(fallbacks, rollbacks):
            thresholds = {"fallback": fallback, "rollback": rollback}
            name = f"bild, fallback {fallback:g}, rollback {rollback:g}"
            ways.append(way(name, "bild", plain, strategy="bild", early_exit=True, **thresholds))
        plain = way("plain, trained with an exit a block", "calm plain", None)
        ways.append(plain)
        for saturation, decay in itertools.product(saturations, decays):
            options = {"saturation": saturation, "decay": decay}
            name = f"calm, saturation {saturation:g}, decay {decay:g}"
            ways.append(way(name, "calm", plain, strategy="calm", **options))
        write_in_turn(ways, chosen)
        rows = [row(each, decoder.layers, decoder.exit_layer) for each in ways]
    result = Exits(decoder.layers, decoder.exit_layer, count, len(chosen), rows)
    click.echo(msgspec.json.encode(result).decode() if as_json else table(result))


def exported(checkpoint: Path, bundle: Path, every: bool | None) -> Path:
    """The bundle of a checkpoint, which must have an exit after `every` block, one exit, or None."""
    record = read_early_exit(checkpoint, 1 << 20)
    found = None if record is None else record.layer == EVERY
    if found is not every:
        option = "--every-layer" if every else "--layer-exit"
        trained = "train early-exit --every-layer" if every else "train early-exit"
        raise UsageError(f"{option} {checkpoint}: expected a checkpoint from `intaglio {trained}`. Train it first.")
    with step(f"exporting {bundle.name}"):
        export(str(checkpoint), bundle, check=False)
    return bundle


def without_exits(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint without the record of its exits."""
    copy = folder / f"{len(list(folder.iterdir()))} checkpoint"
    shutil.copytree(checkpoint, copy, ignore=shutil.ignore_patterns(RECORD))
    return copy


def row(way: Compared, layers: int, exit_layer: int) -> Row:
    """The results of a configuration; `exit_layer`: BiLD's blocks per pass of the small model."""
    plain = (way.plain or way).results
    seconds = sum(result.seconds for result in way.results)
    tokens = sum(len(result.tokens) for result in way.results)
    blocks = sum(
        result.calls.small * exit_layer + result.calls.large * layers
        if result.blocks is None
        else result.blocks * len(result.tokens)
        for result in way.results
    )
    return Row(
        way=way.name,
        speed=sum(result.seconds for result in plain) / seconds,
        milliseconds=1e3 * seconds / len(plain),
        bleu=text_quality([result.text for result in way.results], [result.text for result in plain]).bleu,
        same=sum(ours.tokens == theirs.tokens for ours, theirs in zip(way.results, plain, strict=True)) / len(plain),
        blocks=blocks / tokens,
    )


def table(result: Exits) -> str:
    """Print the results as tables."""
    sizes = f"{result.layers} blocks, BiLD's exit after {result.exit_layer}"
    lines = [f"{sizes}; {result.threads} threads, {result.texts} texts", ""]
    columns = ("speed", "ms a text", "bleu", "same", "blocks")
    lines.append(f"{'way':40} " + " ".join(f"{column:>9}" for column in columns))
    for each in result.rows:
        cells = f"{each.speed:9.2f} {each.milliseconds:9.1f} {each.bleu:9.2f} {each.same:9.0%} {each.blocks:9.2f}"
        lines.append(f"{each.way:40} {cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
