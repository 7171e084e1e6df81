"""Export a speech recogniser by tracing, compared with the source model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from intaglio.accuracy.default_bounds import Bounds
from intaglio.bundle.bundle import Audio, Axis, Draft, TensorSpec
from intaglio.bundle.model_file import save
from intaglio.display.progress import step
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.encoders.traced import blocks_of
from intaglio.exporters.reference.check import Batch, Checked, check_graph, check_needed
from intaglio.exporters.reference.source_model import build_model, check_finite, tracing_errors
from intaglio.exporters.speech.traced.family import TracedRecognizer
from intaglio.exporters.speech.traced.feature_extractor import Waveforms, read_waveforms
from intaglio.exporters.speech.traced.vocabulary import write_vocabulary
from intaglio.exporters.writing.manifest import new_manifest
from intaglio.extras import load
from intaglio.runtime.modalities.audio import padded, resampled
from intaglio.runtime.speech.recognizer import AUDIO, LENGTHS, LOG_PROBS, OUTPUT_LENGTHS
from intaglio.runtime.speech.windows import MOST_FRAMES
from intaglio.samples.speech_samples import SAMPLE_RATE, recordings

CHECKED = (3, 1)  # recordings of each batch that is compared: one with padding, one without
LANGUAGE_MODEL = "language_model"  # the folder of an n-gram model beside a checkpoint


def export_traced_recognizer(
    checkpoint: Checkpoint, family: TracedRecognizer, dtype: str, draft: Draft, bounds: Bounds | None
) -> dict[str, Checked]:
    """Fill `draft` with the recogniser of `checkpoint`, and compare its outputs with the source model's.

    The source model reads each recording alone, behind the library's own normalisation. Raises `SourceError` for a
    checkpoint that is inconsistent or not supported, `UsageError` without `bounds`.
    """
    if bounds is None:
        raise check_needed(f"the graph of a {family.architecture} is traced")
    waveforms = read_waveforms(checkpoint.folder)
    with step("loading the libraries"):
        torch = load("torch")
        load("transformers")
        from intaglio.exporters.encoders.trace import trace
    with step("running the source model"):
        model = source_model(checkpoint, family)
        vocabulary = write_vocabulary(checkpoint.folder, int(model.lm_head.out_features), draft.path)
        frame_samples = math.prod(model.config.conv_stride)
        feeds = _feeds(waveforms, frame_samples)
        with tracing_errors(checkpoint, family.architecture, "run"):
            expected = [_alone(model, batch, waveforms) for batch in feeds]
        check_finite(checkpoint, (batch[LOG_PROBS] for batch in expected), "recordings of speech")
        del model
    with step("tracing"):
        module = load_traced_recognizer(checkpoint, family)
        axes = {"batch": Axis(), "samples": Axis(module.shortest)}
        inputs = [TensorSpec(AUDIO, "float32", ("batch", "samples")), TensorSpec(LENGTHS, "int64", ("batch",))]
        with tracing_errors(checkpoint, family.architecture, "traced"):
            weights = checkpoint.tensors()
            frames = frame_samples, module.shortest
            traced = trace(module, inputs, module.output_names, weights, axes, getattr(torch, dtype), frames)
        del module, weights
    with step("writing"):
        traced.model.graph.outputs[0].shape = load("onnx_ir").Shape(["batch", "frames", len(vocabulary)])
        draft.manifest = new_manifest(
            traced.model,
            checkpoint.source(),
            family,
            "transcribe",
            dtype,
            axes={**axes, "frames": Axis()},
            layers=traced.layers,
            audio=Audio(waveforms.sample_rate, frame_samples, blank=vocabulary.blank),
        )
        save(traced.model, draft.model_path, consume=True)
    draft.notes += traced.rounding.notes()
    if (checkpoint.folder / LANGUAGE_MODEL).is_dir():
        draft.notes.append(
            f"the folder {LANGUAGE_MODEL} is left out; a beam search takes a model of words as an ARPA file"
        )
    with step("checking against the source model"):
        return check_graph(draft.model_path, bounds, feeds, expected)


def load_traced_recognizer(checkpoint: Checkpoint, family: TracedRecognizer) -> Any:
    """The checkpoint as a float32 module in eval mode with the bundle's inputs and outputs."""
    load("torch")
    from intaglio.exporters.speech.traced.modules import Recognizer

    return Recognizer(source_model(checkpoint, family), read_waveforms(checkpoint.folder).normalizes).eval()


def source_model(checkpoint: Checkpoint, family: TracedRecognizer) -> Any:
    """The checkpoint as a model of `transformers`, float32 in eval mode. Raises `SourceError`."""
    model = build_model(checkpoint, checkpoint.tensors(), family.architecture, blocks_of)
    return model.eval().requires_grad_(False)


def _feeds(waveforms: Waveforms, frame_samples: int) -> list[Batch]:
    """Real recordings as batches of inputs, of at most `MOST_FRAMES` frames each."""
    rate, most = waveforms.sample_rate, MOST_FRAMES * frame_samples
    samples = [resampled(recording.samples, SAMPLE_RATE, rate)[:most] for recording in recordings()]
    return [dict(padded(samples[sum(CHECKED[:index]) :][:count])) for index, count in enumerate(CHECKED)]


def _alone(model: Any, batch: Batch, waveforms: Waveforms) -> Batch:
    """The outputs of the model of `transformers` for each row of a batch alone, with zeros behind them."""
    torch: Any = load("torch")
    extractor = load("transformers").Wav2Vec2FeatureExtractor(
        sampling_rate=waveforms.sample_rate, do_normalize=waveforms.normalizes
    )
    rows = [audio[:length] for audio, length in zip(batch[AUDIO], batch[LENGTHS], strict=True)]
    found = []
    with torch.inference_mode():
        for row in rows:
            values = extractor(row, sampling_rate=waveforms.sample_rate, return_tensors="pt").input_values
            found.append(model(values).logits[0].log_softmax(-1).numpy())
    counts = np.array([len(each) for each in found], np.int64)
    log_probs = np.zeros((len(found), counts.max(), found[0].shape[-1]), np.float32)
    for row, each in zip(log_probs, found, strict=True):
        row[: len(each)] = each
    return {LOG_PROBS: log_probs, OUTPUT_LENGTHS: counts}
