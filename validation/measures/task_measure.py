"""The choice of a bundle's measure."""

from __future__ import annotations

from typing import Any

from intaglio.bundle.bundle import Manifest
from intaglio.validation.measures.answer_measure import Answers
from intaglio.validation.measures.measures import Distributions, Embeddings, Labels, Measure, Scores, Vectorwise
from intaglio.validation.measures.ranking_measure import Rankings
from intaglio.validation.measures.transcript_measure import Transcripts


def measure_for(manifest: Manifest) -> Measure[Any]:
    """The measure of a bundle's task, by its task and its outputs."""
    outputs = {spec.name for spec in manifest.outputs}
    match manifest.task:
        case "embed" | "embed-sparse" if "sentence_embedding" in outputs:
            return Embeddings("sentence_embedding")
        case "encode" if "last_hidden_state" in outputs:
            return Embeddings("last_hidden_state")
        case "classify" if "logits" in outputs and len(manifest.labels) == 1 and manifest.modality == "text":
            return Rankings()
        case "classify" if "logits" in outputs:
            return Scores() if manifest.activation == "identity" else Labels(manifest.activation)
        case "token-classification" if "logits" in outputs:
            return Labels("softmax")
        case "question-answering" if {"start_logits", "end_logits"} <= outputs:
            return Answers()
        case "fill-mask" | "generate" if "logits" in outputs:
            return Distributions(continues=manifest.task == "generate")
        case "transcribe" if {"log_probs", "output_lengths"} <= outputs and manifest.audio is not None:
            return Transcripts(manifest.audio.blank)
        case _:
            return Vectorwise()
