"""Convert a speech recogniser of another toolkit to a checkpoint that `export` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from intaglio.display.progress import step
from intaglio.exporters.checkpoints.converted import Converted
from intaglio.exporters.checkpoints.hama_container import read_container
from intaglio.exporters.checkpoints.nemo_archive import read_archive
from intaglio.exporters.speech.from_hama import read_hama
from intaglio.exporters.speech.from_nemo import read_nemo
from intaglio.extras import load
from intaglio.networks.speech.configuration import check_config

NEMO, HAMA = ".nemo", ".hama"


def convert_recogniser(path: Path, folder: Path) -> Converted:
    """Write the archive of NeMo or the container of hama at `path` to `folder`.

    The folder gets config.json, model.safetensors and vocabulary.json. Raises `SourceError` for a file that is
    damaged, or a network that is not supported.
    """
    with step("loading the libraries"):
        torch = load("torch")
        from intaglio.networks.speech.checkpoint import write_checkpoint
        from intaglio.networks.speech.network import SpeechNetwork
        from intaglio.networks.speech.weights import check_weights
    with step("reading"):
        if path.suffix == NEMO:
            config, weights, vocabulary = read_nemo(*read_archive(path), str(path))
        else:
            config, arrays, vocabulary = read_hama(read_container(path), path)
            weights = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    check_config(config, str(path))
    with torch.device("meta"):
        network = SpeechNetwork(config)
    check_weights(network, weights, path)
    with step("writing"):
        write_checkpoint(folder, config, weights, vocabulary)
    parameters = sum(tensor.numel() for tensor in weights.values())
    return Converted(config.model_type, parameters, len(vocabulary["tokens"]))
