"""Export a speech recogniser: from its checkpoint to the graph, the manifest, and the comparison with the source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Audio, Axis, Draft, Manifest
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.errors import BundleError, SourceError
from intaglio.exporters.checkpoints.checkpoint import CONFIG, Checkpoint
from intaglio.exporters.reference.check import Batch, Checked, check_graph
from intaglio.exporters.reference.source_model import check_finite, source_errors
from intaglio.exporters.speech.family import SpeechFamily
from intaglio.exporters.speech.front_end import log_mel
from intaglio.exporters.speech.graph import FLOAT, SpeechGraph
from intaglio.exporters.speech.reference import load_speech
from intaglio.exporters.writing.checkpoint_weights import CheckpointWeights
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.files.hashes import copy_file
from intaglio.networks.speech.configuration import SpeechConfig, read_config
from intaglio.runtime.modalities.audio import padded, resampled
from intaglio.runtime.speech.vocabulary import VOCABULARY, read_vocabulary
from intaglio.runtime.speech.windows import MOST_FRAMES
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings

CHECKED = (3, 1)  # recordings of each batch that is compared: one with padding, one without
BLOCKS = "encoder.layers"


def export_speech(
    checkpoint: Checkpoint,
    family: SpeechFamily,
    dtype: str,
    draft: Draft,
    bounds: Bounds | None,
    features: bool = False,
) -> dict[str, Checked]:
    """Fill `draft` with the recogniser of `checkpoint`; with `bounds`, compare its outputs with the source model's.

    `features`: the graph takes those of the front end, else samples. Raises `SourceError` for a checkpoint
    that is inconsistent or not supported.
    """
    with step("loading the libraries"):
        load("torch")
    config, takes_audio = read_config(checkpoint.config, str(checkpoint.folder / CONFIG)), not features
    _write_vocabulary(checkpoint, config, draft)
    feeds = [] if bounds is None else _feeds(checkpoint, config, takes_audio)
    with step("writing"):
        graph = _graph(checkpoint, family, config, dtype, takes_audio)
        draft.manifest = _manifest(checkpoint, family, config, dtype, takes_audio, graph)
    expected = [] if bounds is None else _source_outputs(checkpoint, family, feeds, takes_audio)
    with step("writing"):
        save(graph.model, draft.model_path, consume=True)
    draft.notes += graph.weights.rounding.notes()
    if bounds is None:
        return {}
    with step("checking against the source model"):
        return check_graph(draft.model_path, bounds, feeds, expected)


def checked_as(config: Mapping[str, Any], dtype: str, features: bool = False) -> str:
    """The precision whose bounds hold for the comparison: float16 also for a graph that rounds its features to it.

    A feature at the border of two such numbers is rounded up or down by the order of summation.
    """
    front_end = config.get("front_end")
    rounds = isinstance(front_end, dict) and front_end.get("precision") == "float16"
    return "float16" if rounds and not features else dtype


def _write_vocabulary(checkpoint: Checkpoint, config: SpeechConfig, draft: Draft) -> None:
    path = checkpoint.folder / VOCABULARY
    try:
        vocabulary = read_vocabulary(path)
    except BundleError as error:
        raise SourceError(str(error)) from error
    if len(vocabulary) != config.vocab_size or vocabulary.blank != config.blank_token_id:
        raise SourceError(
            f"{path}: {len(vocabulary)} tokens with the blank {vocabulary.blank}, but {CONFIG} has {config.vocab_size} "
            f"with {config.blank_token_id}. Take both files from the same checkpoint."
        )
    copy_file(path, draft.path / VOCABULARY)


def _graph(
    checkpoint: Checkpoint, family: SpeechFamily, config: SpeechConfig, dtype: str, takes_audio: bool
) -> SpeechGraph:
    """The finished graph, with its weights still unread."""
    weights = CheckpointWeights(checkpoint.folder, checkpoint.tensors(), [BLOCKS], embedding="", tie=False)
    graph = SpeechGraph(config, weights, ir.DataType.from_numpy(np.dtype(dtype)), takes_audio)
    features, frames = log_mel(graph) if takes_audio else (graph.signal, graph.lengths)
    if config.front_end.precision == "float16":
        features = graph.op("Cast", [features], to=ir.DataType.FLOAT16)
    if graph.dtype != FLOAT or config.front_end.precision == "float16":
        features = graph.op("Cast", [features], to=graph.dtype)
    graph.finish(*family.build(graph, features, frames))
    return graph


def _manifest(
    checkpoint: Checkpoint,
    family: SpeechFamily,
    config: SpeechConfig,
    dtype: str,
    takes_audio: bool,
    graph: SpeechGraph,
) -> Manifest:
    front_end = config.front_end
    return new_manifest(
        graph.model,
        checkpoint.source(),
        family,
        "transcribe",
        dtype,
        axes={
            "batch": Axis(),
            **({"samples": Axis(front_end.window)} if takes_audio else {"feature_frames": Axis()}),
            "frames": Axis(),
        },
        layers=graph.layers,
        audio=Audio(
            front_end.sample_rate,
            config.frame_samples,
            0 if takes_audio else front_end.mels,
            front_end.precision if takes_audio else "float32",
            config.blank_token_id,
        ),
    )


def _feeds(checkpoint: Checkpoint, config: SpeechConfig, takes_audio: bool) -> list[Batch]:
    """Real recordings as batches of inputs, of at most `MOST_FRAMES` output frames each."""
    import torch

    from intaglio.networks.speech.front_end import LogMel
    from intaglio.networks.speech.weights import FRONT_END

    rate, most = config.front_end.sample_rate, MOST_FRAMES * config.frame_samples
    samples = [resampled(recording.samples, SAMPLE_RATE, rate)[:most] for recording in recordings()]
    batches = [padded(samples[sum(CHECKED[:index]) :][:count]) for index, count in enumerate(CHECKED)]
    if takes_audio:
        return [dict(batch) for batch in batches]
    front_end = LogMel(config.front_end)
    if config.front_end.constants == "stored":
        stored = {name: mapped.tensor for name, mapped in checkpoint.tensors().items() if name.startswith(FRONT_END)}
        with source_errors(checkpoint, "speech recogniser", RuntimeError):
            front_end.load_state_dict({name.removeprefix(FRONT_END): tensor for name, tensor in stored.items()})
    computed = (front_end(*(torch.from_numpy(array) for array in batch.values())) for batch in batches)
    return [{"features": features.numpy(), "lengths": frames.numpy()} for features, frames in computed]


def _source_outputs(checkpoint: Checkpoint, family: SpeechFamily, feeds: list[Batch], takes_audio: bool) -> list[Batch]:
    """The source model's outputs in float32. Raises `SourceError` if they contain NaN or infinity."""
    import torch

    with step("running the source model"), torch.inference_mode():
        with source_errors(checkpoint, family.architecture, RuntimeError, IndexError):
            network = load_speech(checkpoint, family, features=not takes_audio)
            returned = [network(*(torch.from_numpy(array) for array in batch.values())) for batch in feeds]
        expected = [
            {name: tensor.numpy() for name, tensor in zip(network.output_names, outputs, strict=True)}
            for outputs in returned
        ]
    check_finite(checkpoint, (batch["log_probs"] for batch in expected))
    return expected
