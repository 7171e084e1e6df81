"""Folders of sentence-transformers with encoders that are traced: embeddings equal the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from covering import few
from sentence_folders import TEXTS, Case, edit, make
from tiny_encoders import BASE, MASKED, save_encoder

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.encoders.traced import ALONE
from intaglio.runtime import run

BOUND = 2e-5  # absolute error of an embedding's values
TYPES = ("modernbert", "mpnet", "gte", "nomic_bert", "electra", "deberta-v2", "albert", "t5")
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
    "mask_token": "[MASK]", "unk_token": "[UNK]", "model_max_length": 60,
}  # fmt: skip


def sentence_folder(folder: Path, model_type: str, case: Case, **settings: str) -> Path:
    """A folder of the library, saved from a checkpoint with another head."""
    checkpoint = save_encoder(folder / "checkpoint", model_type, BASE if model_type in ALONE else MASKED)
    (checkpoint / "tokenizer_config.json").write_text("{}")
    edit(checkpoint / "tokenizer_config.json", **TOKENIZER | settings)
    return make(case, checkpoint, folder / "source")


@pytest.mark.proof
@pytest.mark.parametrize("model_type", few(TYPES, ["mpnet"]))
def test_embeddings_equal_sentence_transformers(model_type: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    pooling = ("cls",) if model_type == "gte" else ("mean",)
    source = sentence_folder(tmp_path, model_type, Case(poolings=pooling, prompts={"query": "query: "}))
    assert export(str(source), tmp_path / "bundle").passed
    assert Bundle.open(tmp_path / "bundle").manifest.task == "embed"
    model = SentenceTransformer(str(source), device="cpu")
    for prompt in (None, "query"):
        found = run(tmp_path / "bundle", TEXTS, truncate=True, prompt_name=prompt, batch_size=3)
        wanted = model.encode(TEXTS, prompt_name=prompt)
        embeddings = np.array([each.embedding for each in found])
        np.testing.assert_allclose(embeddings, wanted, rtol=0, atol=BOUND)


def test_padding_on_the_left_is_refused(tmp_path: Path) -> None:
    source = sentence_folder(tmp_path, "electra", Case(), padding_side="left")
    with pytest.raises(SourceError, match="padding_side 'left' is not supported"):
        export(str(source), tmp_path / "bundle")
