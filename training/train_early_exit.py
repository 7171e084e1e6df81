"""Fine-tuning a causal language model so that its first blocks are a small model of their own."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from intaglio import interrupts
from intaglio.early_exit import RECORD, EarlyExit, default_layer, layer_fault
from intaglio.errors import SourceError, UsageError
from intaglio.extras import load as load_library
from intaglio.progress import step, track
from intaglio.training.causal_model import check_output, open_network, read_windows, shuffled, write_network
from intaglio.training.options import check_numbers

OPTION = "--data"


class TrainedExit(msgspec.Struct):
    """What `train_early_exit` did. Losses are in nats a token, on held-out text, before the training and after."""

    checkpoint: str
    source: str
    layer: int  # blocks before the exit
    layers: int  # blocks in all
    early_loss_before: float
    early_loss: float
    last_loss_before: float
    last_loss: float
    agreement_before: float  # part of the tokens where both exits' likeliest is the same
    agreement: float
    tokens: int
    held_out: int  # tokens
    seconds: float


def train_early_exit(
    source: str | Path,
    output: str | Path,
    data: str | Path,
    layer: int | None = None,
    steps: int = 500,
    batch_size: int = 8,
    max_tokens: int = 128,
    learning_rate: float = 1e-4,
    seed: int = 0,
) -> TrainedExit:
    """Fine-tune the model in the folder `source` on the text in `data` to predict after its first `layer` blocks too.

    What is lowered is the mean of the losses there and after the last block, which share the final norm and the head
    (thesis, section 4.3 and appendix C.2). By default the exit is after a quarter of the blocks. The model is trained
    whole, so that what it writes without the exit changes, too.

    `output` becomes a folder with config.json, safetensors in the checkpoint's dtype, the files of the tokenizer, and
    early_exit.json. Raises `SourceError` for a folder that is no causal language model of a family that can be
    exported, with a tokenizer, `UsageError`, `GraphError` where training diverges, `StorageError`; nothing is left at
    `output` then.
    """
    counts = {"steps": steps, "batch size": batch_size, "max tokens": max_tokens}
    check_numbers(counts, learning_rate, seed)
    source, output = Path(source), Path(output)
    check_output(output)
    started = time.monotonic()
    torch = load_library("torch")
    from intaglio.exit_network import LAST_MODULES
    from intaglio.training.exit_tuner import ExitTuner

    with step("reading"):
        network, stored = open_network(source)
        config = network.config
        if config.model_type not in LAST_MODULES:
            raise SourceError(
                f"source {source}: an early exit of {config.model_type} is not supported. Supported are: "
                f"{', '.join(LAST_MODULES)}."
            )
        depth = config.num_hidden_layers
        exit_layer = default_layer(depth) if layer is None else layer
        if fault := layer_fault(exit_layer, depth):
            raise UsageError(f"{fault}.")
        training, held_out = read_windows(source, data, OPTION, min(max_tokens, config.max_position_embeddings))
    torch.manual_seed(seed)  # of the dropout that a checkpoint may ask for
    tuner = ExitTuner(network, exit_layer, learning_rate)
    before = tuner.measure(held_out, batch_size)
    windows = shuffled(training, batch_size, np.random.default_rng(seed))
    for _ in track(range(steps), "training", total=steps):
        with interrupts.deferred():
            tuner.step(next(windows))
    after = tuner.measure(held_out, batch_size)
    record = msgspec.json.format(msgspec.json.encode(EarlyExit(exit_layer)), indent=2) + b"\n"
    with step("writing"):
        write_network(network, stored, source, output, {RECORD: record})
    return TrainedExit(
        checkpoint=str(output),
        source=str(source),
        layer=exit_layer,
        layers=depth,
        early_loss_before=before.early_loss,
        early_loss=after.early_loss,
        last_loss_before=before.last_loss,
        last_loss=after.last_loss,
        agreement_before=before.agreement,
        agreement=after.agreement,
        tokens=training.size,
        held_out=held_out.size,
        seconds=time.monotonic() - started,
    )
