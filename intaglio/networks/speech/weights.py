"""Load the weights of a checkpoint into a `SpeechNetwork`, or refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from intaglio.errors import SourceError
from intaglio.networks.speech.checkpoint import COUNTER
from intaglio.networks.speech.configuration import SpeechConfig
from intaglio.networks.speech.front_end import LogMel
from intaglio.networks.speech.network import SpeechNetwork

FRONT_END = "front_end."  # prefix of the names of its constants


def load_network(
    config: SpeechConfig, weights: Mapping[str, Tensor], where: Path, front_end: bool = True
) -> SpeechNetwork:
    """The network with `weights` in float32, in eval mode; those that are float32 are not copied.

    Raises `SourceError` for weights that are missing, unexpected, or of another shape.
    """
    with torch.device("meta"):
        network = SpeechNetwork(config, front_end)
    if front_end:
        network.front_end = LogMel(config.front_end)  # its constants are in no checkpoint
    else:  # stored constants of the front end are not needed
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(FRONT_END)}
    check_weights(network, weights, where)
    state = {name: tensor.float() for name, tensor in weights.items()}
    state |= {name: torch.zeros((), dtype=torch.long) for name in network.state_dict() if name.endswith(COUNTER)}
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False)


def check_weights(network: SpeechNetwork, weights: Mapping[str, Tensor], where: Path) -> None:
    """Raise `SourceError` unless `weights` have the shapes of the network's, all of them and no others."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    expected = {
        name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if not name.endswith(COUNTER)
    }
    wrong = [
        f"{name} ({list(shapes[name]) if name in shapes else 'missing'}, expected {list(shape)})"
        for name, shape in expected.items()
        if shapes.get(name) != shape
    ]
    wrong += [f"{name} (unexpected)" for name in shapes if name not in expected]
    if wrong:
        raise SourceError(
            f"{where}: {len(wrong)} weights are not those that its configuration describes: {', '.join(wrong[:2])}"
            f"{'…' if wrong[2:] else ''}. Compare the configuration with the original, or copy the checkpoint again."
        )
