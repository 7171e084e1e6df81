"""Trained encoders of other types than BERT keep their accuracy in integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from minilm_shapes import save_as_roberta
from trained_letters import MASK, paragraphs, save_trained_modernbert

from intaglio.bundle.bundle import Bundle
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime import open_engine
from intaglio.runtime.text.tokenizer import Tokenizer
from intaglio.samples.sentences import sentences

Floats = npt.NDArray[np.float32]


def calibration(folder: Path) -> Path:
    texts = paragraphs(training=True)
    path = folder / "texts.txt"
    path.write_text("\n".join(texts[:: len(texts) // 64][:64]), encoding="utf-8")
    return path


def embeddings(bundle: Path) -> Floats:
    tokenizer = Tokenizer.open(Bundle.open(bundle))
    with open_engine(bundle) as engine:
        return np.concatenate([engine.run(tokenizer.feeds([text]))["sentence_embedding"] for text in sentences()])


@pytest.mark.proof
def test_trained_xlm_roberta_keeps_its_embeddings(minilm: Path, minilm_bundle: Path, tmp_path: Path) -> None:
    """MiniLM's weights with RoBERTa's positions: equal to MiniLM in float32, and as accurate in integers."""
    checkpoint = save_as_roberta(minilm, tmp_path / "checkpoint", "xlm-roberta")
    export(str(checkpoint), tmp_path / "bundle")
    expected = embeddings(tmp_path / "bundle")
    np.testing.assert_allclose(expected, embeddings(minilm_bundle), atol=1e-6)
    compress(tmp_path / "bundle", tmp_path / "int8", "int8-only", calibration=calibration(tmp_path))
    cosines = (expected * embeddings(tmp_path / "int8")).sum(axis=1)
    assert cosines.mean() >= 0.995 and cosines.min() >= 0.98, (cosines.mean(), cosines.min())


def predictions(bundle: Path) -> tuple[float, float, Floats]:
    """The share of masked letters that are predicted, the loss of them, and all logits, on texts not trained on."""
    tokenizer, random = Tokenizer.open(Bundle.open(bundle)), np.random.default_rng(1)
    right, losses, logits = [], [], []
    with open_engine(bundle) as engine:
        for text in paragraphs(training=False)[:80]:
            feeds = tokenizer.feeds([text])
            ids = feeds["input_ids"]
            hidden = random.random(ids.shape) < 0.2
            found = engine.run({**feeds, "input_ids": np.where(hidden, MASK, ids)})["logits"]
            largest = found.max(axis=-1, keepdims=True)
            total = np.log(np.exp(found - largest).sum(axis=-1)) + largest[..., 0]
            losses.append((total - np.take_along_axis(found, ids[..., None], -1)[..., 0])[hidden])
            right.append((found.argmax(axis=-1) == ids)[hidden])
            logits.append(found[0])
    return float(np.concatenate(right).mean()), float(np.concatenate(losses).mean()), np.concatenate(logits)


@pytest.mark.proof
def test_trained_modernbert_keeps_its_predictions(tmp_path: Path) -> None:
    """Trained here, for a minute: a third of the masked letters are right, ten times as many as by chance."""
    export(str(save_trained_modernbert(tmp_path / "checkpoint")), tmp_path / "bundle")
    compress(tmp_path / "bundle", tmp_path / "int8", "int8-only", calibration=calibration(tmp_path))
    right, loss, logits = predictions(tmp_path / "bundle")
    integer_right, integer_loss, integer_logits = predictions(tmp_path / "int8")
    assert right > 0.3
    assert integer_right > right - 0.01 and integer_loss < loss + 0.02, (right, integer_right, loss, integer_loss)
    norms = [np.linalg.norm(each, axis=1) for each in (logits, integer_logits)]
    cosines = (logits * integer_logits).sum(axis=1) / norms[0] / norms[1]
    assert cosines.mean() >= 0.995, cosines.mean()
