"""Checkpoints with quantised weights are read to the bit, and multiply with the codes that they have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples, few
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import PACKED, Quantized, Tensors, mapped, quantized, random_weight, save_quantized
from quantized_checkpoints import settings as settings_of

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.quantized.formats import joined
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.exporters.reference import check
from intaglio.exporters.reference.source_model import deferred_model
from intaglio.runtime import generate

BITS = {"gptq": (2, 3, 4, 8), "awq": (4,), "compressed-tensors": (2, 3, 4, 8)}


def read(parts: Tensors, method: str, **fields: Any) -> Any:
    """The weight that the parts form."""
    section = settings_of(method, 4, 32, True) | fields
    return joined(mapped(parts), {"quantization_config": section})["layer.weight"]


@settings(max_examples=examples(60))
@given(st.data())
def test_every_weight_is_read_to_the_bit(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(list(PACKED)))
    bits, version = data.draw(st.sampled_from(BITS[method])), data.draw(st.sampled_from(["gptq", "gptq_v2", "gptq_p"]))
    group_size, symmetric = data.draw(st.sampled_from([32, 64, 96])), data.draw(st.booleans())
    inputs = data.draw(st.sampled_from([group_size, 2 * group_size, 192]))
    ordered = method == "awq" or inputs % group_size > 0 or data.draw(st.booleans())
    rows = data.draw(st.sampled_from([32, 64]))
    each = quantized(random_weight(rows, inputs, data.draw(st.integers(0, 9))), bits, group_size, symmetric, ordered)
    parts = PACKED[method](each, **({"version": version} if method == "gptq" else {}))
    found = read(parts, method, bits=bits, group_size=group_size, sym=symmetric, checkpoint_format=version)
    assert (found.shape, found.bits) == (each.codes.shape, bits)
    assert found.group_size in (group_size, np.gcd(group_size, inputs))
    np.testing.assert_array_equal(found.tensor.numpy(), each.weight)


@pytest.mark.parametrize("stored_as", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("stated", ["gptq", "gptq_v2", None])
def test_version_of_symmetric_weights_follows_the_numbers(stored_as: str, stated: str | None) -> None:
    each = quantized(random_weight(32, 64), 4, 32)
    found = read(PACKED["gptq"](each, version=stored_as), "gptq", checkpoint_format=stated)
    np.testing.assert_array_equal(found.tensor.numpy(), each.weight)
    assert (found.read().zero_points == 8).all()


@pytest.mark.parametrize("bits", BITS["gptq"])
def test_zero_point_of_0_wraps_in_the_first_version(bits: int) -> None:
    each = quantized(random_weight(32, 64), bits, 32, symmetric=False)
    each.zeros[::3] = 0
    found = read(PACKED["gptq"](each), "gptq", sym=False)
    np.testing.assert_array_equal(found.tensor.numpy(), each.weight)


def test_zero_points_of_channels_that_fill_no_three_words_are_read() -> None:
    for rows, methods in ((40, list(PACKED)), (20, ["gptq", "compressed-tensors"])):
        each = quantized(random_weight(rows, 64), 4, 32, symmetric=False)
        for method in methods:
            found = read(PACKED[method](each), method, sym=False)
            np.testing.assert_array_equal(found.tensor.numpy(), each.weight)


def test_rows_of_zeros_stay_zeros() -> None:
    weight = random_weight(32, 64)
    weight[3] = 0
    each = quantized(weight, 4, 32)
    assert each.scales[3].max() == 0
    for method in PACKED:
        assert not read(PACKED[method](each), method).tensor[3].any()


def test_settings_beside_the_configuration_count(tmp_path: Path) -> None:
    checkpoint = save_quantized(tmp_path, "llama", "gptq")
    config = json.loads((checkpoint / "config.json").read_text())
    older = {name: value for name, value in config.pop("quantization_config").items() if name != "quant_method"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "quantize_config.json").write_text(json.dumps(older))
    assert Checkpoint.open(str(checkpoint)).parameters()["model.layers.0.mlp.up_proj.weight"].shape == (128, 64)


def named(change: Callable[[Tensors], Any], name: str) -> Callable[[Tensors], Any]:
    """A change with a name for the test."""
    change.__name__ = name
    return change


def without(name: str) -> Callable[[Tensors], Any]:
    """Remove a part."""
    return named(lambda parts: parts.pop(name), f"without {name}")


def cut(name: str, axis: int) -> Callable[[Tensors], Any]:
    """Cut a part."""
    return named(
        lambda parts: parts.update({name: parts[name].take(range(parts[name].shape[axis] - 1), axis)}),
        f"{name} cut along {axis}",
    )


def flat(name: str) -> Callable[[Tensors], Any]:
    """Lay a part out in one axis."""
    return named(lambda parts: parts.update({name: parts[name].reshape(-1)}), f"flat {name}")


def filled(name: str, value: int) -> Callable[[Tensors], Any]:
    """Fill a part with a number."""
    return named(lambda parts: parts[name].fill(value), f"{name} of {value}")


DAMAGES = [
    *(("gptq", without(name)) for name in ("qweight", "qzeros", "scales")),
    *(("gptq", cut(name, axis)) for name in ("qweight", "qzeros", "scales") for axis in (0, 1)),
    *(("gptq", flat(name)) for name in ("qweight", "qzeros", "scales")),
    ("gptq", filled("g_idx", 0)),
    ("gptq", filled("g_idx", -5)),
    ("gptq", cut("g_idx", 0)),
    *(("awq", without(name)) for name in ("qweight", "qzeros", "scales")),
    *(("awq", cut(name, axis)) for name in ("qweight", "qzeros", "scales") for axis in (0, 1)),
    *(("compressed-tensors", without(name)) for name in ("weight_packed", "weight_scale", "weight_shape")),
    *(("compressed-tensors", cut(name, axis)) for name in ("weight_packed", "weight_scale") for axis in (0, 1)),
    ("compressed-tensors", filled("weight_shape", 0)),
    ("compressed-tensors", filled("weight_shape", -64)),
    ("compressed-tensors", filled("weight_shape", 1 << 40)),
    ("compressed-tensors", cut("weight_zero_point", 0)),
]


@pytest.mark.parametrize(
    ("method", "damage"), DAMAGES, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_parts_that_form_no_weight_get_one_line(method: str, damage: Callable[[Tensors], Any]) -> None:
    parts = PACKED[method](quantized(random_weight(64, 128), 4, 32, symmetric=False))
    damage(parts)
    with pytest.raises(SourceError) as error:
        read(parts, method, sym=False)
    assert "\n" not in str(error.value) and "layer" in str(error.value)


@pytest.mark.parametrize("given", [0, -2, "128", None, 1.5, True, 1 << 70, 48])
def test_group_size_that_does_not_fit_gets_one_line(given: object) -> None:
    for method in ("gptq", "awq"):
        with pytest.raises(SourceError, match="layer: "):
            read(PACKED[method](quantized(random_weight(32, 128), 4, 32)), method, group_size=given)


def test_layout_that_is_not_read_is_named() -> None:
    parts = PACKED["gptq"](quantized(random_weight(32, 64), 4, 32))
    for fields in ({"checkpoint_format": "marlin"}, {"is_marlin_format": True}):
        with pytest.raises(SourceError, match="layer: the layout 'marlin' of GPTQ is not read"):
            read(parts, "gptq", **fields)


def test_groups_that_the_operator_lacks_are_refused() -> None:
    each = quantized(random_weight(32, 64), 3, 16)
    with pytest.raises(SourceError, match="groups of 16 for 64 inputs are not kept"):
        read(PACKED["gptq"](each), "gptq", group_size=16)


EXPORTED = [
    ("llama", "gptq", {"ordered": False, "symmetric": False}),
    ("qwen3", "gptq", {"bits": 8, "version": "gptq_v2"}),
    ("llama", "awq", {"symmetric": False}),
    ("phi3", "awq", {}),
    ("gemma3_text", "compressed-tensors", {"symmetric": False}),
    ("mixtral", "gptq", {"symmetric": False}),
    ("qwen3_moe", "awq", {"moe_intermediate_size": 64}),
    ("granite", "compressed-tensors", {"bits": 8, "group_size": 64, "ordered": False}),
]


@pytest.mark.parametrize(("model_type", "method", "options"), few(EXPORTED, EXPORTED[:1]), ids=str)
def test_bundle_multiplies_by_the_codes_and_writes_the_same_text(
    model_type: str, method: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = save_quantized(tmp_path, model_type, method, **options)
    result = export(str(checkpoint), tmp_path / "bundle")
    assert result.passed
    (note,) = result.notes
    assert f"weights are kept as {method} has them: {options.get('bits', 4)} bits" in note
    graph = load(Bundle.open(tmp_path / "bundle").model_path).graph
    products = sum(node.op_type == "GroupMatMul" for node in graph)
    # The first two products of an expert are one in transformers.
    assert products == int(note.split()[0]) - 2 * 4 * (model_type in ("mixtral", "qwen3_moe"))
    assert not any(str(value.name).endswith("_proj.weight_transposed") for value in graph.initializers.values())
    prompts = ["Hello wo", "The", "A cat sat on"]
    texts = [each.tokens for each in generate(tmp_path / "bundle", prompts, max_new_tokens=30, batch=3)]
    assert export(str(tmp_path / "float"), tmp_path / "whole").passed
    assert texts == [each.tokens for each in generate(tmp_path / "whole", prompts, max_new_tokens=30, batch=3)]
    assert_opened_by_layers_it_computes_the_same(Bundle.open(tmp_path / "bundle"), monkeypatch)


def assert_opened_by_layers_it_computes_the_same(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the check of a large model opens it."""
    assert bundle.manifest.decoder is not None
    given = (
        bundle.model_path,
        bundle.manifest.decoder,
        [[5, 6, 7, 8, 9], [11, 12]],
        list(bundle.manifest.layers.values()),
    )
    whole = stepwise_outputs(*given)
    monkeypatch.setattr(check, "WHOLE_UP_TO", 0)
    for one, other in zip(whole["logits"], stepwise_outputs(*given)["logits"], strict=True):
        np.testing.assert_array_equal(one, other)


def test_codes_of_weights_below_each_other_are_joined_and_of_others_refused() -> None:
    import torch

    from intaglio.exporters.checkpoints.deferred import DeferredTensor

    def deferred(seed: int, ordered: bool = False) -> tuple[Any, Any]:
        each = quantized(
            random_weight(32, 64, seed), 4, 32, symmetric=bool(seed % 2), ordered=ordered, seed=7 - ordered
        )
        return DeferredTensor.of(f"w{seed}", read(PACKED["gptq"](each), "gptq", sym=False)), each.weight

    (first, upper), (second, lower), (third, _) = deferred(0), deferred(1), deferred(2, ordered=True)
    joined_weight = torch.cat([first, second]).to(torch.float64)
    np.testing.assert_array_equal(joined_weight.coded().tensor.numpy(), np.concatenate([upper, lower]))
    np.testing.assert_array_equal(torch.stack([first, second]).part(1).coded().tensor.numpy(), lower)
    for changed in (torch.cat([first, third]), torch.cat([first, second], 1), first.flip(0), first * 2, first.T):
        with pytest.raises(SourceError, match="w0: transformers changes this quantised weight"):
            changed.coded()
    assert DeferredTensor.of("float", mapped({"w": upper})["layer.w"]).flip(0).coded() is None


def test_biases_of_zeros_for_layers_without_one_are_left_out(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    checkpoint = save_quantized(tmp_path, "llama", "gptq")
    file, name = checkpoint / "model.safetensors", "model.layers.0.mlp.up_proj.bias"
    tensors = load_file(file)
    save_file({**tensors, name: torch.zeros(128)}, file, {"format": "pt"})
    deferred_model(Checkpoint.open(str(checkpoint)), "LlamaForCausalLM", lambda model: "model.layers")
    save_file({**tensors, name: torch.ones(128)}, file, {"format": "pt"})
    with pytest.raises(SourceError, match=r"mlp\.up_proj\.bias"):
        deferred_model(Checkpoint.open(str(checkpoint)), "LlamaForCausalLM", lambda model: "model.layers")


def test_quantised_encoder_is_refused_by_name(tiny_checkpoint: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = settings_of("gptq", 4, 128, True)
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match="GPTQ, 4 bits, read in causal language models alone"):
        export(str(copy), tmp_path / "bundle")


def test_weights_match_their_description() -> None:
    each: Quantized = quantized(random_weight(32, 64), 4, 32)
    assert np.abs(each.weight - random_weight(32, 64)).max() <= each.scales.max() * 0.51
