"""The squared gradients of a decoder's loss on one piece of text, in this process or as a task that writes a file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import GraphError
from intaglio.executors.shared_files import SharedBundle
from intaglio.extras import load as load_library
from intaglio.runtime.engines.engine import Array
from intaglio.sensitivity_file import Observed, SensitivityWriter
from intaglio.training.torch_threads import torch_threads

if TYPE_CHECKING:
    import torch

    from intaglio.training.gradients.decoder_network import DecoderNetwork


def open_network(bundle: Bundle) -> DecoderNetwork:
    """Return the network of a bundle's graph, whose weights are mapped into memory."""
    load_library("torch")
    from intaglio.training.gradients.decoder_network import DecoderNetwork

    return DecoderNetwork(load(bundle.model_path, mapped=True))


def add_gradients(network: DecoderNetwork, piece: Mapping[str, Array], count: int, writer: SensitivityWriter) -> float:
    """Add the squared gradients of the loss on `piece`, divided by `count`, to `writer`; return the loss."""
    import torch

    from intaglio.training.gradients.weight_products import only_read

    def take(name: str, gradient: torch.Tensor) -> None:
        if not torch.isfinite(gradient).all():
            raise GraphError(
                f"{name}: its gradient is NaN or infinite, expected finite numbers. Fix the model, or the text."
            )
        writer.add(name, gradient.square_().div_(count).numpy())

    tensors = {id(array): only_read(array) for array in piece.values()}  # all empty caches are one array
    feeds = {name: tensors[id(array)] for name, array in piece.items()}
    following = feeds["input_ids"][0, 1:]

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits[0, :-1], following)

    return network.gradients(feeds, loss, take)


def write_gradients(bundle: SharedBundle, piece: Mapping[str, Array], observed: Observed, output: Path) -> float:
    """Write the squared gradients of one of the pieces that were `observed` to the file `output`; return the loss.

    Raises `BundleError` if this machine has no such bundle.
    """
    network = _network(bundle)
    with torch_threads(1), SensitivityWriter.create(output, network.shapes, observed) as writer:
        return add_gradients(network, piece, observed.samples, writer)


@lru_cache(maxsize=1)
def _network(bundle: SharedBundle) -> DecoderNetwork:
    return open_network(bundle.open())
