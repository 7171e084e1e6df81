"""The source model of a speech recogniser: our own network in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.exporters.checkpoints.checkpoint import CONFIG, Checkpoint
from intaglio.exporters.speech.family import SpeechFamily
from intaglio.extras import load
from intaglio.networks.speech.configuration import read_config

if TYPE_CHECKING:
    from intaglio.networks.speech.network import SpeechNetwork


def load_speech(checkpoint: Checkpoint, family: SpeechFamily, features: bool = False) -> SpeechNetwork:
    """The checkpoint as a float32 `SpeechNetwork` in eval mode; it takes samples, or `features` of its front end."""
    load("torch")
    from intaglio.networks.speech.weights import load_network

    config = read_config(checkpoint.config, str(checkpoint.folder / CONFIG))
    weights = {name: mapped.tensor for name, mapped in checkpoint.tensors().items()}
    return load_network(config, weights, checkpoint.folder, not features)
