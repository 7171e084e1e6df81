"""A speech recogniser's checkpoint: a folder with config.json, model.safetensors and vocabulary.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from safetensors.torch import save_file
from torch import Tensor

from intaglio.errors import storage_errors
from intaglio.networks.speech.configuration import SpeechConfig

CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.json"
COUNTER = "num_batches_tracked"  # of batch normalisation in training, which no checkpoint of ours has


def write_checkpoint(
    folder: Path, config: SpeechConfig, weights: Mapping[str, Tensor], vocabulary: Mapping[str, object]
) -> None:
    """Write the checkpoint's files into `folder`; `weights` by the names that `SpeechNetwork` gives them."""
    kept = {name: tensor for name, tensor in weights.items() if not name.endswith(COUNTER)}
    with storage_errors(folder):
        contiguous = {name: tensor.contiguous().clone() for name, tensor in kept.items()}
        save_file(contiguous, folder / WEIGHTS, metadata={"format": "pt"})
        (folder / WEIGHTS).chmod(0o644)  # the library lets only its user read it
        for name, content in ((CONFIG, config), (VOCABULARY, vocabulary)):
            (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
