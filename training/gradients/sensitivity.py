"""The sensitivity of a decoder's loss to each of its weights: the diagonal of the Fisher information."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step, track
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.opening import opened
from intaglio.executors.shared_files import SharedBundle
from intaglio.files.atomic import check_output_file
from intaglio.processes.temporary import sibling_directory
from intaglio.processes.threads import check_threads, limited
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.chunks import load_chunks
from intaglio.sensitivity_file import Observed, Sensitivities, SensitivityWriter
from intaglio.training.gradients.window_gradients import add_gradients, open_network, write_gradients
from intaglio.training.torch_threads import torch_threads

if TYPE_CHECKING:
    from intaglio.training.gradients.decoder_network import DecoderNetwork

OPTION = "--calibration"
LEAST_TOKENS = 64  # minimum length of a calibration text; gradients on fewer tokens are meaningless


class Sensitivity(msgspec.Struct):
    """The result of `sensitivity`."""

    file: str
    weights: int  # matrices
    parameters: int  # elements in them
    samples: int
    tokens: int
    loss: float  # nats per token, on the calibration text
    seconds: float


def sensitivity(
    bundle: str | Path,
    output: str | Path,
    calibration: str | Path,
    samples: int = 100,
    tokens: int = 512,
    force: bool = False,
    threads: int | None = None,
    executor: str | Executor = INLINE.name,
) -> Sensitivity:
    """Compute the sensitivity of the decoder's loss to the weights of its linear layers, and write it to `output`.

    It is the diagonal of the Fisher information (SqueezeLLM, eq. 3.4 and 3.5): the mean, over `samples` pieces of
    `tokens` tokens of the UTF-8 text in `calibration`, of the squared gradient of the mean loss of predicting each
    next token. `output` is a file of `intaglio.sensitivity_file`, as large as the weights in float32.

    Memory holds the gradient of one weight at a time (that of a tied table stays from its use in the head on), the
    activations of one layer, and the input of each other one; the weights are mapped from the bundle. `threads`: the
    maximum for torch, by default its own setting. `executor`: where the pieces are computed, an open one or the name of
    one, as in `intaglio.compress`; the file is the same, to the byte. Workers of other machines need the bundle and the
    folder of `output` at the same paths, and a file as large as `output` for each piece in progress. Raises
    `BundleError`, `GraphError`, `UsageError`, `StorageError`; nothing is left at `output` then.
    """
    output = Path(output)
    _check_options(output, samples, tokens, force, threads)
    started = time.monotonic()
    with step("reading"):
        source = Bundle.open(bundle)
        decoder_of(source)
        pieces, used = load_chunks(source, calibration, samples, 1, OPTION, tokens)
        count = sum(piece["input_ids"].size for piece in pieces)
        if count < LEAST_TOKENS:
            raise UsageError(
                f"{OPTION} {calibration}: {count} tokens, expected at least {LEAST_TOKENS}, better ten "
                "thousand or more. Give more text."
            )
        network = open_network(source)
    observed = Observed(source.manifest.source.sha256, Path(calibration).name, used.sha256, len(pieces), count)
    with (
        limited(threads),  # processes divide them among themselves
        opened(executor) as workers,
        torch_threads(1),  # the products are divided among the threads in the same way everywhere
        SensitivityWriter.create(output, network.shapes, observed) as writer,
    ):
        losses = list(_losses(source, network, pieces, writer, workers, observed, output))
    return Sensitivity(
        file=str(output),
        weights=len(network.shapes),
        parameters=sum(int(np.prod(shape)) for shape in network.shapes.values()),
        samples=len(pieces),
        tokens=count,
        loss=float(np.mean(losses)),
        seconds=time.monotonic() - started,
    )


def _losses(
    source: Bundle,
    network: DecoderNetwork,
    pieces: Sequence[dict[str, Array]],
    writer: SensitivityWriter,
    executor: Executor,
    observed: Observed,
    output: Path,
) -> Iterator[float]:
    """Add the squared gradients of each of `pieces` to `writer`, in order, and yield the losses."""
    if executor is INLINE:
        for piece in track(pieces, "sensitivity", total=len(pieces)):
            yield add_gradients(network, piece, len(pieces), writer)
        return
    with sibling_directory(output) as folder:
        shared = SharedBundle.of(source)
        tasks = ((shared, piece, observed, folder / str(number)) for number, piece in enumerate(pieces))
        losses = executor.map(write_gradients, tasks)
        for number, loss in enumerate(track(losses, "sensitivity", total=len(pieces))):
            path = folder / str(number)
            writer.add_all(Sensitivities.open(path))
            path.unlink()
            yield loss


def _check_options(output: Path, samples: int, tokens: int, force: bool, threads: int | None) -> None:
    check_threads(threads)
    for name, value, least in (("samples", samples, 1), ("tokens", tokens, 2)):
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}.")
    check_output_file(output, force, "output")
