"""Bundles with heads for tokens and answers are validated against their source, and by the measures of their tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_encoders import ANSWERS, TAGS, save_encoder

from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.validation import validate


@pytest.mark.proof
@pytest.mark.parametrize(("head", "task"), [(TAGS, "token-classification"), (ANSWERS, "question-answering")])
def test_heads_are_compared_with_the_source_and_by_their_decisions(head: str, task: str, tmp_path: Path) -> None:
    source = save_encoder(tmp_path / "checkpoint", "electra", head)
    assert export(str(source), tmp_path / "bundle").passed
    found = validate(tmp_path / "bundle", samples=16, batch_size=4)
    assert found.passed and set(found.outputs) == ({"logits"} if head == TAGS else {"start_logits", "end_logits"})
    compress(tmp_path / "bundle", tmp_path / "small", recipe="int8-weights")
    compared = validate(tmp_path / "small", against=tmp_path / "bundle", samples=16, batch_size=4)
    (measure,) = compared.measures
    assert measure.name == "label_agreement" and measure.value > 0.5
