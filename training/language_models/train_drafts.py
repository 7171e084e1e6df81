"""Train drafts for a causal language model with frozen weights: hidden transfer, and Medusa."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from intaglio import interrupts
from intaglio.display.progress import step as shown
from intaglio.display.progress import track
from intaglio.errors import UsageError
from intaglio.extras import load as load_library
from intaglio.files.atomic import CHECKPOINT, atomic_directory
from intaglio.networks.drafts import (
    HIDDEN_TRANSFER,
    MATRICES,
    MEDUSA,
    RECORD,
    Drafts,
    default_layers,
    layers_error,
    matrix_path,
    unsuited,
)
from intaglio.networks.positions import first_position
from intaglio.training.language_models.checkpoint import check_output, copy_files, open_network, read_windows, shuffled
from intaglio.training.language_models.options import check_choices, check_numbers

OPTION = "--data"
Precision = Literal["float32", "bfloat16"]  # of the products


class DraftStep(msgspec.Struct):
    """A trained step: its agreement with the model's own predictions on held-out text, before and after training."""

    layer: int | None  # the block that its pseudo states enter; None for Medusa
    kl_divergence_before: float  # nats
    kl_divergence: float
    top1: float  # fraction of tokens where the model's top-1 is the step's top-1
    top3: float  # ... is in the step's top-3


class TrainedDrafts(msgspec.Struct):
    """The result of `train_hidden_transfer` or `train_medusa`."""

    checkpoint: str
    source: str
    kind: str
    steps: list[DraftStep]
    parameters: int  # of the drafts
    tokens: int
    held_out: int  # tokens
    seconds: float


def train_hidden_transfer(
    source: str | Path,
    output: str | Path,
    data: str | Path,
    steps_ahead: int = 3,
    layers: Sequence[int] | None = None,
    steps: int = 300,
    batch_size: int = 8,
    max_tokens: int = 128,
    learning_rate: float = 2e-3,
    seed: int = 0,
    precision: Precision = "float32",
    force: bool = False,
) -> TrainedDrafts:
    """Train projections to pseudo hidden states of the next tokens, for the model in the folder `source`.

    "Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration", section 3.3: before the
    block `layers[s]` the states of each token are projected to those of the token s + 1 positions ahead, which go
    through the remaining blocks and attend to the sequence up to that token, to the pseudo states of earlier steps and
    to themselves. The projections are trained one after the other, each for `steps` optimiser steps with the earlier
    ones frozen, to minimise the KL divergence of its predictions from the model's own on the text in `data`. By default
    the layers are spread from the middle of the depth to 8/10 of it. `data` is a text, or the JSON lines of
    `read_texts`, split into windows. The matrices and their gradients are float32 in any `precision`.

    `output` becomes a folder with all files of the checkpoint, byte for byte, drafts.safetensors and drafts.json.
    Raises `SourceError` if the folder is not a causal language model with a tokenizer, `UsageError`, `GraphError` if
    training diverges, `StorageError`; nothing is left at `output` then.
    """
    options = _Options(steps_ahead, steps, batch_size, max_tokens, learning_rate, seed, precision, force)
    return _train(HIDDEN_TRANSFER, Path(source), Path(output), data, layers, options)


def train_medusa(
    source: str | Path,
    output: str | Path,
    data: str | Path,
    steps_ahead: int = 3,
    steps: int = 300,
    batch_size: int = 8,
    max_tokens: int = 128,
    learning_rate: float = 2e-3,
    seed: int = 0,
    precision: Precision = "float32",
    force: bool = False,
) -> TrainedDrafts:
    """Train Medusa heads for the model in the folder `source`: one residual block each, before the model's own head.

    This is Medusa-1, with a frozen model, and without separate heads. Loss, text, training steps and number of
    parameters equal those of `train_hidden_transfer`, for a fair comparison; so do output and errors.
    """
    options = _Options(steps_ahead, steps, batch_size, max_tokens, learning_rate, seed, precision, force)
    return _train(MEDUSA, Path(source), Path(output), data, None, options)


class _Options(msgspec.Struct):
    steps_ahead: int
    steps: int
    batch_size: int
    max_tokens: int
    learning_rate: float
    seed: int
    precision: Precision
    force: bool


def _train(
    kind: Any, source: Path, output: Path, data: str | Path, layers: Sequence[int] | None, options: _Options
) -> TrainedDrafts:
    counts = {"steps ahead": options.steps_ahead, "steps": options.steps, "batch size": options.batch_size}
    check_choices({"precision": (options.precision, get_args(Precision))})
    check_numbers(counts | {"max tokens": options.max_tokens}, options.learning_rate, options.seed)
    check_output(source, output, options.force)
    started = time.monotonic()
    load_library("torch")
    from intaglio.training.language_models.draft_tuner import DraftTuner, agreement
    from intaglio.training.language_models.drafter import drafter_of

    with shown("reading"):
        network, _ = open_network(source)
        config = network.config.get_text_config()
        length = min(options.max_tokens, config.max_position_embeddings - first_position(network))
        if length < options.steps_ahead + 2:
            raise UsageError(
                f"windows of {length} tokens: too short for {options.steps_ahead} steps ahead. Enlarge them."
            )
        if reason := unsuited(kind, config):
            raise UsageError(f"source {source}: {config.model_type} has {reason}")
        if kind == HIDDEN_TRANSFER:
            _check_windows(config, length + options.steps_ahead)
        drafts = _record(kind, options.steps_ahead, layers, config.num_hidden_layers)
        training, held_out = read_windows(source, data, OPTION, length)
        drafter = drafter_of(network, drafts, options.precision)
    made: list[DraftStep] = []
    for step in range(drafts.steps):
        before = agreement(drafter, step, held_out, options.batch_size)
        tuner = DraftTuner(drafter, step, options.learning_rate, options.steps)
        windows = shuffled(training, options.batch_size, np.random.default_rng(options.seed))
        for _ in track(range(options.steps), f"training step {step + 1} of {drafts.steps}", total=options.steps):
            with interrupts.deferred():
                tuner.train(next(windows))
        drafter.matrices[step].requires_grad_(False)
        after = agreement(drafter, step, held_out, options.batch_size)
        layer = drafts.layers[step] if drafts.layers else None
        made.append(DraftStep(layer, before.kl_divergence, after.kl_divergence, after.top1, after.top3))
    with shown("writing"):
        _write(drafts, drafter.matrices, source, output, options.force)
    return TrainedDrafts(
        checkpoint=str(output),
        source=str(source),
        kind=kind,
        steps=made,
        parameters=sum(parameter.numel() for parameter in drafter.matrices.parameters()),
        tokens=training.size,
        held_out=held_out.size,
        seconds=time.monotonic() - started,
    )


def _check_windows(config: Any, length: int) -> None:
    """Raise `UsageError` if windows in some of the layers are shorter than `length` tokens: all get the same mask."""
    kinds = set(getattr(config, "layer_types", None) or ())
    lengths = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    shortest = min((each for each in lengths if isinstance(each, int)), default=length)
    if len(kinds) > 1 and shortest < length:
        raise UsageError(
            f"windows of {length} tokens with the drafts: some layers of this {config.model_type} see only {shortest}. "
            "Reduce --max-tokens."
        )


def _record(kind: Any, steps: int, layers: Sequence[int] | None, depth: int) -> Drafts:
    if kind == MEDUSA:
        return Drafts(kind, steps)
    chosen = tuple(layers) if layers is not None else default_layers(steps, depth)
    if error := layers_error(chosen, steps, depth):
        raise UsageError(f"{error}.")
    return Drafts(kind, steps, chosen)


def _write(drafts: Drafts, matrices: Any, source: Path, output: Path, force: bool) -> None:
    """Write the checkpoint of `source` and the drafts to the folder `output`, atomically."""
    from safetensors.torch import save_file

    with atomic_directory(output, force, CHECKPOINT) as folder:
        copy_files(source, folder, weights=True)
        tensors = {f"{matrix_path(step)}.weight": matrix.weight.detach() for step, matrix in enumerate(matrices)}
        save_file(tensors, folder / MATRICES, metadata={"format": "pt"})
        (folder / RECORD).write_bytes(msgspec.json.format(msgspec.json.encode(drafts), indent=2) + b"\n")
        for path in folder.iterdir():
            path.chmod(0o644)
