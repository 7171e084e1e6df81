"""The check of an export detects a damaged image encoder, and image embeddings in the wrong places."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.bundle.model_file import save
from intaglio.exporters import export

ENCODER, DECODER = "image_text.export.save", "decoders.decoder_bundle.save"


def change_a_weight(model: ir.Model) -> None:
    """Add 1 to one number of the connector's weight."""
    value = next(value for name, value in model.graph.initializers.items() if "modality_projection" in name)
    assert value.const_value is not None
    numbers = value.const_value.numpy().copy()
    numbers[1, 2] += 1
    value.const_value = ir.tensor(numbers, name=value.name)


def roll_rows(model: ir.Model) -> None:
    """Each token of an image has the embedding of the one before it."""
    rows = next(value for value in model.graph.inputs if value.name == "image_embeddings")
    uses, nodes = list(rows.uses()), []

    def node(kind: str, *inputs: ir.Value, **attributes: object) -> ir.Value:
        nodes.append(ir.node(kind, inputs, attributes))  # type: ignore[arg-type]
        nodes[-1].outputs[0].name = f"rolled_{len(nodes)}"
        return nodes[-1].outputs[0]

    def constant(*numbers: int) -> ir.Value:
        return node("Constant", value=ir.tensor(np.array(numbers, np.int64)))

    last = node("Slice", rows, constant(-1), constant(1 << 40), constant(0))
    rest = node("Slice", rows, constant(0), constant(-1), constant(0))
    rolled = node("Concat", last, rest, axis=0)
    model.graph.insert_before(model.graph[0], nodes)
    for use in uses:
        use.node.replace_input_with(use.idx, rolled)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("place", "damage", "failed"),
    [
        (ENCODER, change_a_weight, {"image_embeddings", "logits_with_images"}),
        (DECODER, roll_rows, {"logits_with_images"}),
    ],
)
def test_check_detects_damage(
    place: str,
    damage: Callable[[ir.Model], None],
    failed: set[str],
    image_text: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def save_damaged(model: ir.Model, path: Path, **options: bool) -> None:
        damage(model)
        save(model, path, **options)

    monkeypatch.setattr(f"intaglio.exporters.{place}", save_damaged)
    result = export(str(image_text[0]), tmp_path / "bundle")
    assert {name for name, output in result.outputs.items() if not output.passed} == failed
