"""Fine-tune a causal language model to predict also after its first blocks, or after every block."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from intaglio import interrupts
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.extras import load as load_library
from intaglio.networks.early_exit import EVERY, RECORD, EarlyExit, default_layer, layer_error
from intaglio.training.language_models.checkpoint import (
    check_output,
    open_network,
    read_windows,
    shuffled,
    write_network,
)
from intaglio.training.language_models.options import check_numbers

OPTION = "--data"


class TrainedLayer(msgspec.Struct):
    """The predictions of an exit on held-out text, before and after training; losses in nats per token."""

    layer: int  # blocks before the exit
    loss_before: float
    loss: float
    agreement_before: float  # fraction of tokens where its top-1 is the last block's
    agreement: float


class TrainedExit(msgspec.Struct):
    """The result of `train_early_exit`."""

    checkpoint: str
    source: str
    layer: int | Literal["every"]  # blocks before the exit
    layers: int  # total number of blocks
    exits: list[TrainedLayer]  # the last is after all blocks
    tokens: int
    held_out: int  # tokens
    seconds: float


def train_early_exit(
    source: str | Path,
    output: str | Path,
    data: str | Path,
    layer: int | None = None,
    every_layer: bool = False,
    steps: int = 500,
    batch_size: int = 8,
    max_tokens: int = 128,
    learning_rate: float = 1e-4,
    seed: int = 0,
    force: bool = False,
) -> TrainedExit:
    """Fine-tune the model in the folder `source` on the text in `data` to predict also after its first `layer` blocks.

    The loss is the mean of the losses there and after the last block, which share the final norm and the head (thesis,
    section 4.3 and appendix C.2). By default the exit is after a quarter of the blocks; with `every_layer` there is one
    after each block, and later ones weigh more (appendix C.2, CALM). The whole model is trained, so its output without
    exits changes, too.

    `output` becomes a folder with config.json, safetensors in the checkpoint's dtype, the files of the tokenizer, and
    early_exit.json. Raises `SourceError` if the folder is not a causal language model with a tokenizer,
    `UsageError`, `GraphError` if training diverges, `StorageError`; nothing is left at `output` then.
    """
    counts = {"steps": steps, "batch size": batch_size, "max tokens": max_tokens}
    check_numbers(counts, learning_rate, seed)
    if every_layer and layer is not None:
        raise UsageError(f"--layer {layer} and --every-layer exclude each other. Leave one out.")
    source, output = Path(source), Path(output)
    check_output(source, output, force)
    started = time.monotonic()
    torch = load_library("torch")
    from intaglio.training.language_models.exit_tuner import ExitTuner, both, every

    with step("reading"):
        network, stored = open_network(source)
        config = network.config.get_text_config()
        depth = config.num_hidden_layers
        chosen = default_layer(depth) if layer is None else layer
        record = EarlyExit(EVERY if every_layer else chosen)
        if error := layer_error(record.layer, depth):
            raise UsageError(f"{error}.")
        training, held_out = read_windows(source, data, OPTION, min(max_tokens, config.max_position_embeddings))
    torch.manual_seed(seed)  # for a checkpoint with dropout
    weights = every(depth) if every_layer else both(chosen, depth)
    tuner = ExitTuner(network, weights, learning_rate)
    before = tuner.measure(held_out, batch_size)
    windows = shuffled(training, batch_size, np.random.default_rng(seed))
    for _ in track(range(steps), "training", total=steps):
        with interrupts.deferred():
            tuner.step(next(windows))
    after = tuner.measure(held_out, batch_size)
    written = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    with step("writing"):
        write_network(network, stored, source, output, force, {RECORD: written})
    return TrainedExit(
        checkpoint=str(output),
        source=str(source),
        layer=record.layer,
        layers=depth,
        exits=[
            TrainedLayer(blocks, old.loss, new.loss, old.agreement, new.agreement)
            for blocks, old, new in zip(weights, before, after, strict=True)
        ],
        tokens=training.size,
        held_out=held_out.size,
        seconds=time.monotonic() - started,
    )
