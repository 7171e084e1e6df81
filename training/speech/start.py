"""Training on from the weights of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from intaglio.errors import SourceError, UsageError, one_line
from intaglio.files.input_files import decode, read_bytes
from intaglio.networks.speech.checkpoint import CONFIG, VOCABULARY, WEIGHTS
from intaglio.networks.speech.configuration import SpeechConfig, read_config
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.networks.speech.weights import check_weights
from intaglio.runtime.speech.vocabulary import Vocabulary, read_vocabulary

HEAD = "head."  # its weights' names begin so


def load_start(network: SpeechNetwork, vocabulary: Vocabulary, folder: Path) -> None:
    """Load the weights of the checkpoint `folder` into `network`, which writes `vocabulary`.

    Of a checkpoint with another vocabulary, all but the head is loaded. Raises `UsageError` for a checkpoint of another
    network, `SourceError` or `BundleError` for one that cannot be read.
    """
    config, found, weights = _read(folder)
    ours, theirs = _options(network.config), _options(config)
    for name in ours | theirs:
        if ours.get(name) != theirs.get(name):
            raise UsageError(
                f"start {folder}: its {name} is {theirs.get(name)!r}, got {ours.get(name)!r}. "
                "Give the options that it was trained with."
            )
    state = network.state_dict()
    if (found.tokens, found.word_mark) != (vocabulary.tokens, vocabulary.word_mark):
        weights |= {name: tensor for name, tensor in state.items() if name.startswith(HEAD)}
    check_weights(network, weights, folder)
    network.load_state_dict(state | weights)


def _options(config: SpeechConfig) -> dict[str, Any]:
    """The options of a network that say what its weights are, but for the head's."""
    free = ("vocab_size", "dropout", "attention_dropout")
    return {name: value for name, value in msgspec.to_builtins(config).items() if name not in free}


def _read(folder: Path) -> tuple[SpeechConfig, Vocabulary, dict[str, Tensor]]:
    try:
        options = msgspec.json.decode(decode(read_bytes(folder / CONFIG)), type=dict[str, Any])
        vocabulary = read_vocabulary(folder / VOCABULARY)
        weights = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError, RecursionError) as error:
        raise SourceError(
            f"start {folder}: cannot be read ({one_line(error, 120)}). Give a checkpoint of train speech."
        ) from error
    return read_config(options, str(folder / CONFIG)), vocabulary, weights
