"""Prune a causal language model while fine-tuning it, from one checkpoint's folder to another."""

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
from intaglio.training.language_models.checkpoint import (
    check_output,
    open_network,
    read_windows,
    shuffled,
    write_network,
)
from intaglio.training.language_models.options import DTYPES, check_choices, check_numbers
from intaglio.training.language_models.schedule import SCHEDULES, Schedule, fraction_at

OPTION = "--data"
METHODS = ("magnitude", "rows")


class Stage(msgspec.Struct):
    """The network after a stage: the pruned fraction of each layer, and the loss on held-out text."""

    fraction: float
    loss: float  # nats per token


class Pruned(msgspec.Struct):
    """The result of `prune`. The first stage is the fine-tuned network before pruning."""

    checkpoint: str
    source: str
    by: str
    schedule: str
    loss_before: float  # of the given checkpoint
    stages: list[Stage]
    parameters_before: int
    parameters: int  # of the written checkpoint
    zeros: int  # among them, in the pruned layers
    tokens: int
    held_out: int  # tokens
    seconds: float


def prune(
    source: str | Path,
    output: str | Path,
    data: str | Path,
    fraction: float = 0.5,
    by: Literal["magnitude", "rows"] = "magnitude",
    schedule: Schedule = "cubic",
    stages: int = 5,
    steps: int = 100,
    batch_size: int = 8,
    max_tokens: int = 256,
    learning_rate: float = 1e-4,
    multiple: int = 32,
    dtype: Literal["float32", "float16"] | None = None,
    seed: int = 0,
    force: bool = False,
) -> Pruned:
    """Fine-tune the causal language model in the folder `source` on the text in `data`, and prune it gradually.

    First the whole model is fine-tuned for `steps` steps, then for `stages` stages of `steps` steps each. With the
    schedule "separate", the masks grow before each stage by an equal part; with "linear" and "cubic" they grow before
    every step, linearly, or fast at first and slowly at the end ("Exploring Methods for Efficient Large Language Model
    Inference", section 2.2: the separate and the simultaneous strategy). In the end `fraction` of the weights of each
    linear layer is 0 (`by="magnitude"`), or `fraction` of the hidden channels of each feed-forward network is removed
    (`by="rows"`), so that a multiple of `multiple` remains.

    `output` becomes a folder with config.json, safetensors in `dtype` (by default that of the checkpoint) and the
    files of the tokenizer. Raises `SourceError` if the folder is not a causal language model with a tokenizer,
    `UsageError`, `GraphError` if training diverges, `StorageError`; nothing is left at `output` then.
    """
    check_choices({"by": (by, METHODS), "schedule": (schedule, SCHEDULES), "dtype": (dtype or "float32", DTYPES)})
    counts = {"stages": stages, "steps": steps, "batch size": batch_size, "max tokens": max_tokens}
    check_numbers(counts | {"multiple": multiple}, learning_rate, seed)
    if not 0 < fraction < 1:
        raise UsageError(f"fraction {fraction}: expected more than 0 and less than 1, such as 0.5.")
    source, output = Path(source), Path(output)
    check_output(source, output, force)
    started = time.monotonic()
    torch = load_library("torch")
    from intaglio.training.language_models.fine_tuner import FineTuner
    from intaglio.training.language_models.masks import MagnitudeMasks, RowMasks

    with step("reading"):
        network, stored = open_network(source)
        length = min(max_tokens, network.config.max_position_embeddings)
        training, held_out = read_windows(source, data, OPTION, length)
        masks = RowMasks(network, multiple) if by == "rows" else MagnitudeMasks(network)
    torch.manual_seed(seed)  # for a checkpoint with dropout
    tuner = FineTuner(network, masks, held_out, batch_size, learning_rate)
    result = Pruned(
        checkpoint=str(output), source=str(source), by=by, schedule=schedule, loss_before=tuner.loss(), stages=[],
        parameters_before=network.num_parameters(), parameters=0, zeros=0, tokens=training.size,
        held_out=held_out.size, seconds=0.0,
    )  # fmt: skip
    windows = shuffled(training, batch_size, np.random.default_rng(seed))
    total = steps * (stages + 1)
    for done in track(range(total), "training", total=total):
        with interrupts.deferred():
            masks.tighten(fraction_at(schedule, done, steps, stages, fraction))
            tuner.step(next(windows))
            if (done + 1) % steps == 0:
                result.stages.append(Stage(masks.reached(), tuner.loss()))
    if isinstance(masks, RowMasks):
        network = masks.removed(network)
    else:
        result.zeros = masks.zeros()
    with step("writing"):
        write_network(network, dtype or stored, source, output, force)
    result.parameters = network.num_parameters()
    result.seconds = time.monotonic() - started
    return result
