"""The sensitivity of a decoder's loss to each of its weights: the diagonal of the Fisher information."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.display.progress import step, track
from intaglio.errors import GraphError, UsageError
from intaglio.extras import load as load_library
from intaglio.files.atomic import check_output_file
from intaglio.processes.threads import check_threads
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.chunks import load_chunks
from intaglio.sensitivity_file import Observed, SensitivityWriter
from intaglio.training.torch_threads import torch_threads

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
) -> Sensitivity:
    """Compute the sensitivity of the decoder's loss to the weights of its linear layers, and write it to `output`.

    It is the diagonal of the Fisher information (SqueezeLLM, eq. 3.4 and 3.5): the mean, over `samples` pieces of
    `tokens` tokens of the UTF-8 text in `calibration`, of the squared gradient of the mean loss of predicting each
    next token. `output` is a file of `intaglio.sensitivity_file`, as large as the weights in float32.

    Memory holds the weights as stored in the graph, the gradient of one weight at a time (that of a tied table stays
    from its use in the head on), and the activations of one layer. `threads`: the maximum for torch, by default its own
    setting. Raises `BundleError`, `GraphError`, `UsageError`, `StorageError`; nothing is left at `output` then.
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
        load_library("torch")
        import torch

        from intaglio.training.gradients.decoder_network import DecoderNetwork

        network = DecoderNetwork(load(source.model_path, mapped=True))
    observed = Observed(source.manifest.source.sha256, Path(calibration).name, used.sha256, len(pieces), count)
    losses = []
    with torch_threads(threads), SensitivityWriter.create(output, network.shapes, observed) as writer:

        def take(name: str, gradient: torch.Tensor) -> None:
            if not torch.isfinite(gradient).all():
                raise GraphError(
                    f"{name}: its gradient is NaN or infinite, expected finite numbers. Fix the model, or the text."
                )
            writer.add(name, gradient.square_().div_(len(pieces)).numpy())

        for piece in track(pieces, "sensitivity", total=len(pieces)):
            feeds = {name: torch.from_numpy(np.array(array)) for name, array in piece.items()}
            following = feeds["input_ids"][0, 1:]

            def loss(logits: torch.Tensor, following: torch.Tensor = following) -> torch.Tensor:
                return torch.nn.functional.cross_entropy(logits[0, :-1], following)

            losses.append(network.gradients(feeds, loss, take))
    return Sensitivity(
        file=str(output),
        weights=len(network.shapes),
        parameters=sum(int(np.prod(shape)) for shape in network.shapes.values()),
        samples=len(pieces),
        tokens=count,
        loss=float(np.mean(losses)),
        seconds=time.monotonic() - started,
    )


def _check_options(output: Path, samples: int, tokens: int, force: bool, threads: int | None) -> None:
    check_threads(threads)
    for name, value, least in (("samples", samples, 1), ("tokens", tokens, 2)):
        if value < least:
            raise UsageError(f"{name} {value}: expected at least {least}.")
    check_output_file(output, force, "output")
