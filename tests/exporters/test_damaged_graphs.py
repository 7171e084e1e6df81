"""The check of an export detects a damaged graph: a changed weight, an off-by-one position, slot or mask."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from covering import few
from drafts import save_drafts
from tiny_translators import save_translator

from intaglio.bundle.model_file import save
from intaglio.exporters import export
from intaglio.networks.drafts import HIDDEN_TRANSFER, MEDUSA

Damage = Callable[[ir.Model, str], None]  # damages a graph, in place; its weights of the given module
ENCODERS, DECODERS, ENCODER_DECODERS = (
    f"intaglio.exporters.{module}.save"
    for module in ("encoders.export", "decoders.decoder_bundle", "encoder_decoders.encoder_decoder_bundle")
)


def rewire(model: ir.Model, name: str, rewrite: Callable[[Any, ir.Value], ir.Value]) -> None:
    """Let all consumers of the input `name` read the value that `rewrite(op, input)` returns."""
    value = next(each for each in model.graph.inputs if each.name == name)
    nodes: list[ir.Node] = []

    def op(kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(kind, inputs, attributes)
        node.outputs[0].name = f"damage_{name}_{len(nodes)}"
        nodes.append(node)
        return node.outputs[0]

    uses, first = list(value.uses()), next(iter(model.graph))
    changed = rewrite(op, value)
    model.graph.insert_before(first, nodes)
    for use in uses:
        use.node.replace_input_with(use.idx, changed)


def constant(op: Any, *numbers: int) -> ir.Value:
    return op("Constant", value=ir.tensor(np.array(numbers, np.int64)))  # type: ignore[no-any-return]


def change_a_weight(model: ir.Model, module: str) -> None:
    """Add 1 to one number of a weight."""
    value = next(
        value
        for name, value in model.graph.initializers.items()
        if module in name and value.const_value is not None and len(value.const_value.shape) == 2
    )
    assert value.const_value is not None
    numbers = value.const_value.numpy().copy()
    numbers[1, 2] += 1
    value.const_value = ir.tensor(numbers, name=value.name)


def shift_positions(model: ir.Model, module: str) -> None:
    """Every token after the first has the position before its own."""
    rewire(model, "positions", lambda op, each: op("Max", op("Sub", each, constant(op, 1)), constant(op, 0)))


def shift_slots(model: ir.Model, module: str) -> None:
    """Keys and values are written to the slot before their own."""
    rewire(model, "write_start", lambda op, each: op("Max", op("Sub", each, constant(op, 1)), constant(op, 0)))


def widen(op: Any, mask: ir.Value, axis: int) -> ir.Value:
    """Every position with a true one before it is true as well."""
    first = op("Slice", mask, constant(op, 0), constant(op, 1), constant(op, axis))
    rest = op("Slice", mask, constant(op, 0), constant(op, -1), constant(op, axis))
    return op("Or", mask, op("Concat", first, rest, axis=axis))  # type: ignore[no-any-return]


def widen_mask(model: ir.Model, module: str) -> None:
    """A token attends to the one after it, too."""
    rewire(model, "attention_mask", lambda op, each: widen(op, each, 2))


DAMAGES = (change_a_weight, shift_positions, shift_slots, widen_mask)


def damaged_export(monkeypatch: pytest.MonkeyPatch, place: str, folder: Path, bundle: Path, damage: Any) -> set[str]:
    """Export with `damage(model)` before a graph is written; the outputs that failed the check."""

    def save_damaged(model: ir.Model, path: Path, **options: Any) -> None:
        damage(model)
        save(model, path, **options)

    monkeypatch.setattr(place, save_damaged)
    result = export(str(folder), bundle)
    assert result.passed is False
    return {name for name, output in result.outputs.items() if not output.passed}


def plain(folder: Path, path: Path) -> Path:
    return folder


def with_exit(folder: Path, path: Path) -> Path:
    shutil.copytree(folder, path)
    (path / "early_exit.json").write_text(json.dumps({"layer": 1}))
    return path


# Family, what is added to its checkpoint, a module, and the output that shows damage to its weights.
CASES: dict[str, tuple[str, Callable[[Path, Path], Path], str, str]] = {
    "plain": ("gpt2", plain, "h.1.mlp.c_fc", "logits"),
    "window": ("mistral", plain, "layers.1.mlp.up_proj", "logits"),
    "early exit": ("gpt2", with_exit, "h.0.mlp.c_fc", "exit_logits"),
    "medusa": ("gpt2", lambda folder, path: save_drafts(folder, path, MEDUSA), "drafts.1", "draft_logits"),
    "transfer": ("llama", lambda folder, path: save_drafts(folder, path, HIDDEN_TRANSFER), "drafts.1", "draft_logits"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("case", CASES)
def test_check_detects_a_damaged_decoder(
    case: str,
    damage: Damage,
    make_decoder: Callable[..., tuple[Path, Path]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    family, add, module, output = CASES[case]
    folder = add(make_decoder(family)[0], tmp_path / "checkpoint")
    failed = damaged_export(monkeypatch, DECODERS, folder, tmp_path / "bundle", lambda model: damage(model, module))
    assert output in failed


@pytest.mark.parametrize("name", ["draft_positions", "draft_mask"])
def test_check_detects_wrong_inputs_of_pseudo_states(
    name: str, make_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damage(model: ir.Model) -> None:
        shifted = {
            "draft_positions": lambda op, each: op("Sub", each, constant(op, 1)),
            "draft_mask": lambda op, each: widen(op, each, 2),
        }
        rewire(model, name, shifted[name])

    folder = save_drafts(make_decoder("llama")[0], tmp_path / "checkpoint", HIDDEN_TRANSFER)
    assert damaged_export(monkeypatch, DECODERS, folder, tmp_path / "bundle", damage) == {"draft_logits"}


# As in other decoders, except the weights of the attention to the source.
@pytest.mark.parametrize("damage", few(DAMAGES, [change_a_weight, widen_mask]))
def test_check_detects_a_damaged_decoder_of_an_encoder_decoder(
    damage: Damage,
    make_encoder_decoder: Callable[..., tuple[Path, Path]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def of_decoder(model: ir.Model) -> None:
        if any(value.name == "write_start" for value in model.graph.inputs):
            damage(model, "decoder.block.1.layer.1.EncDecAttention")

    folder = make_encoder_decoder("t5")[0]
    assert damaged_export(monkeypatch, ENCODER_DECODERS, folder, tmp_path / "bundle", of_decoder) == {"logits"}


def test_check_detects_a_damaged_encoder_of_an_encoder_decoder(
    make_encoder_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def of_encoder(model: ir.Model) -> None:
        if any(value.name == "source_ids" for value in model.graph.inputs):
            change_a_weight(model, "encoder.block.1.layer.0")

    folder = make_encoder_decoder("t5")[0]
    failed = damaged_export(monkeypatch, ENCODER_DECODERS, folder, tmp_path / "bundle", of_encoder)
    assert failed == {"cross_key", "cross_value", "logits"}


@pytest.mark.parametrize("graph", ["encoder", "decoder"])
def test_check_detects_a_wrong_source_mask(
    graph: str, make_encoder_decoder: Callable[..., tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def widened(model: ir.Model) -> None:
        if (graph == "decoder") == any(value.name == "write_start" for value in model.graph.inputs):
            rewire(model, "source_mask", lambda op, each: widen(op, each, 1))

    folder = make_encoder_decoder("t5")[0]
    assert "logits" in damaged_export(monkeypatch, ENCODER_DECODERS, folder, tmp_path / "bundle", widened)


@pytest.mark.proof
@pytest.mark.parametrize("part", ["encoder.layers.1.self_attn", "decoder.layers.1.encoder_attn.q_proj"])
def test_check_detects_a_damaged_traced_encoder_decoder(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damage(model: ir.Model) -> None:
        if any(part in name for name in model.graph.initializers):
            change_a_weight(model, part)

    folder = save_translator(tmp_path / "checkpoint", "bart")
    assert "logits" in damaged_export(monkeypatch, ENCODER_DECODERS, folder, tmp_path / "bundle", damage)


def test_check_detects_a_damaged_encoder(
    one_layer_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def damage(model: ir.Model) -> None:
        change_a_weight(model, "intermediate.dense")

    failed = damaged_export(monkeypatch, ENCODERS, one_layer_checkpoint, tmp_path / "bundle", damage)
    assert failed == {"last_hidden_state", "sentence_embedding"}
