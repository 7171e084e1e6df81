"""The verb `convert`: a checkpoint of another toolkit to one that `export` reads."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import numpy as np

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG
from intaglio.exporters.checkpoints.hama_container import read_container
from intaglio.exporters.checkpoints.nemo_archive import read_archive
from intaglio.exporters.speech.from_hama import read_hama
from intaglio.extras import load
from intaglio.files import atomic_directory
from intaglio.progress import step
from intaglio.speech.configuration import check_config

NEMO, HAMA = ".nemo", ".hama"


class Converted(msgspec.Struct):
    """What was written."""

    checkpoint: str
    seconds: float
    architecture: str  # model_type of config.json
    parameters: int
    tokens: int  # of the vocabulary, the blank among them


def convert(source: str | Path, output: str | Path, force: bool = False) -> Converted:
    """Convert `source`, an archive of NeMo or a container of hama, to the checkpoint folder `output`.

    The folder gets config.json, model.safetensors and vocabulary.json. Raises `SourceError` for a file that is
    damaged, or a network that is not supported, and then leaves nothing at `output`.
    """
    start = time.perf_counter()
    path = Path(source)
    if path.suffix not in (NEMO, HAMA) or not path.is_file():
        what = "no such file" if not path.is_file() else f"ends in {path.suffix or 'nothing'}"
        raise SourceError(f"source {path}: {what}, expected a {NEMO} archive or a {HAMA} container.")
    with atomic_directory(Path(output), force, CONFIG) as folder:
        with step("loading the libraries"):
            torch = load("torch")
            from intaglio.exporters.speech.from_nemo import read_nemo
            from intaglio.speech.checkpoint import write_checkpoint
            from intaglio.speech.network import SpeechNetwork
            from intaglio.speech.weights import check_weights
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
    return Converted(
        str(output),
        round(time.perf_counter() - start, 3),
        config.model_type,
        sum(tensor.numel() for tensor in weights.values()),
        len(vocabulary["tokens"]),
    )
