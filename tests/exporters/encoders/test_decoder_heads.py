"""Decoders with a head for classes: the last token of a text decides, for any padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from tiny_decoders import write_byte_tokenizer
from tiny_families import make_config

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.runtime import open_engine, run

BOUND = 2e-5  # of the largest number
TYPES = (
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "llama",
    "mistral",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
    "smollm3",
    "starcoder2",
)
TEXTS = ["a", "The quick brown fox, 12.5", "another text"]
PADDING = 0  # a byte that no text has


def save(folder: Path, model_type: str, head: str = "SequenceClassification", **options: Any) -> Path:
    """A small random checkpoint of a decoder with a head."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = make_config(model_type, num_labels=3, **{"pad_token_id": PADDING, **options})
    model = getattr(transformers, f"AutoModelFor{head}").from_config(config).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (parameter.ndim == 1))
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.mark.proof
@pytest.mark.parametrize("model_type", few(TYPES, []))
def test_classes_equal_transformers(model_type: str, tmp_path: Path) -> None:
    """In a batch with padding, and for a text with the padding token inside and at its end, which is skipped."""
    import torch
    from transformers import AutoModelForSequenceClassification

    source = save(tmp_path / "checkpoint", model_type)
    assert export(str(source), tmp_path / "bundle").passed
    assert Bundle.open(tmp_path / "bundle").manifest.task == "classify"
    ids = np.array([[5, 6, 7, 8, 9, 10], [11, PADDING, 12, PADDING, 70, 71], [13, 14, PADDING, 99, 98, 97]])
    lengths = (6, 4, 3)
    mask = (np.arange(6) < np.array(lengths)[:, None]).astype(np.int64)
    with open_engine(tmp_path / "bundle") as engine:
        found = engine.run({"input_ids": ids, "attention_mask": mask})["logits"]
    model = AutoModelForSequenceClassification.from_pretrained(source).eval()
    with torch.inference_mode():
        rows = [model(torch.from_numpy(row[None, :length])).logits[0] for row, length in zip(ids, lengths, strict=True)]
    wanted = torch.stack(rows).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())
    together = [result.scores for result in run(tmp_path / "bundle", TEXTS)]
    alone = [result.scores for result in run(tmp_path / "bundle", TEXTS, batch_size=1)]
    for each, other in zip(together, alone, strict=True):
        assert each == pytest.approx(other, abs=1e-5)


@pytest.mark.proof
def test_classes_of_tokens_and_answers_of_a_decoder(tmp_path: Path) -> None:
    for head, task in (("TokenClassification", "token-classification"), ("QuestionAnswering", "question-answering")):
        source = save(tmp_path / task, "qwen2", head)
        assert export(str(source), tmp_path / f"{task}-bundle").passed
        assert Bundle.open(tmp_path / f"{task}-bundle").manifest.task == task


@pytest.mark.proof
def test_classifier_without_a_known_layer_is_refused(tmp_path: Path) -> None:
    source = save(tmp_path / "checkpoint", "ctrl")
    with pytest.raises(SourceError, match="CTRLForSequenceClassification has no layer `score`"):
        export(str(source), tmp_path / "bundle")
