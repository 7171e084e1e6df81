"""Checkpoints with weights of 8 bits: integers and floating-point numbers are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import save_stored

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.quantized.formats import joined
from intaglio.runtime import generate

LINEAR = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
INTEGERS = {"quant_method": "compressed-tensors", "format": "int-quantized"}
FLOATS = {"quant_method": "compressed-tensors", "format": "float-quantized"}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 48], "activation_scheme": "dynamic"}
SMALL_BLOCKS = {**BLOCKS, "weight_block_size": [32, 32]}
CHANNELS = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
ACTIVATIONS = {"config_groups": {"group_0": {"input_activations": {"num_bits": 8, "dynamic": True}}}}


def read(section: dict[str, Any], **parts: Any) -> Any:
    """The weight that the parts, tensors of torch, form."""
    from intaglio.exporters.files.safetensors_file import MappedTensor

    tensors = {f"layer.{name}": MappedTensor(part, Path("model.safetensors"), 0) for name, part in parts.items()}
    return joined(tensors, {"quantization_config": section})["layer.weight"]


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers, float32."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(*shape: int, seed: int = 0) -> Any:
    """Any int8."""
    import torch

    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


@settings(max_examples=examples(40))
@given(st.data())
def test_integers_are_kept_to_the_bit(data: st.DataObject) -> None:
    import torch

    rows, groups, size = (data.draw(st.sampled_from(values)) for values in ((1, 5, 32), (1, 2, 3), (32, 64, 96)))
    weight, seed = integers(rows, groups * size), data.draw(st.integers(0, 9))
    shape = data.draw(st.sampled_from([(rows, groups), *([(rows,), (1,), ()] if groups == 1 else [])]))
    scale = (
        random(*shape, seed=seed).abs().to(data.draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32])))
    )
    zeros = integers(*shape, seed=seed) if data.draw(st.booleans()) else None
    others = {} if zeros is None else {"weight_zero_point": zeros}
    found = read(INTEGERS, weight=weight, weight_scale=scale, **others)

    def spread(values: Any) -> Any:
        return values.float().reshape(-1, groups).expand(rows, groups).repeat_interleave(size, 1)

    expected = spread(scale) * (weight.float() - (0 if zeros is None else spread(zeros)))
    assert (found.bits, found.group_size, found.shape) == (8, size, (rows, groups * size))
    assert torch.equal(found.tensor, expected)


@settings(max_examples=examples(40))
@given(st.data())
def test_floats_of_8_bits_are_kept_or_decoded_exactly(data: st.DataObject) -> None:
    import torch

    rows, columns = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 100) | st.sampled_from([32, 96, 128, 256]))
    block = data.draw(st.sampled_from([(32, 48), (128, 128), (1, 16)]))
    weight = random(rows, columns).to(torch.float8_e4m3fn)
    if data.draw(st.booleans()):
        weight = integers(rows, columns).view(torch.float8_e4m3fn)  # with those that are no numbers
    scale = random(-(-rows // block[0]), -(-columns // block[1]), seed=1).abs()
    scale = scale.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float8_e8m0fnu])))
    found = read({**BLOCKS, "weight_block_size": list(block)}, weight=weight, weight_scale_inv=scale)
    spread = scale.float()[torch.arange(rows) // block[0]][:, torch.arange(columns) // block[1]]
    expected = weight.float() * spread
    assert found.shape == (rows, columns)
    size = columns if tuple(scale.shape) in ((1, 1), (rows, 1)) else block[1]
    if columns % size == columns % 32 == 0:
        assert (found.bits, found.group_size) == (8, size)
    else:
        assert found.form == "8-bit floating point"
    torch.testing.assert_close(found.tensor, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (48,), (48, 1)])
@pytest.mark.parametrize("section", [FLOATS, CHANNELS], ids=["compressed-tensors", "fbgemm"])
def test_scales_of_channels_or_of_all_numbers_are_read(section: dict[str, Any], shape: tuple[int, ...]) -> None:
    import torch

    weight, scale = random(48, 20).to(torch.float8_e4m3fn), random(*shape, seed=1).abs()
    found = read(section, weight=weight, weight_scale=scale)
    assert torch.equal(found.tensor, weight.float() * scale.reshape(-1, 1))


def test_parts_that_form_no_weight_get_one_line() -> None:
    import torch

    small, codes, scale = random(64, 96).to(torch.float8_e4m3fn), integers(64, 96), random(64, 1)
    damaged = [
        (BLOCKS, {"weight": small}),
        (INTEGERS, {"weight": codes}),
        (BLOCKS, {"weight_scale_inv": random(2, 2)}),
        (BLOCKS, {"weight": small, "weight_scale_inv": random(2, 3)}),
        (BLOCKS, {"weight": random(64, 96), "weight_scale_inv": random(2, 2)}),
        (BLOCKS, {"weight": small, "weight_scale_inv": codes[:2, :2]}),
        (BLOCKS, {"weight": small.reshape(-1), "weight_scale_inv": random(2, 2)}),
        ({**BLOCKS, "weight_block_size": [0, 48]}, {"weight": small, "weight_scale_inv": random(2, 2)}),
        ({**BLOCKS, "weight_block_size": "48"}, {"weight": small, "weight_scale_inv": random(2, 2)}),
        (FLOATS, {"weight": codes, "weight_scale": scale}),
        (INTEGERS, {"weight": small, "weight_scale": scale}),
        (INTEGERS, {"weight": codes, "weight_scale": random(63, 1)}),
        (INTEGERS, {"weight": codes, "weight_scale": scale, "weight_zero_point": integers(63, 1)}),
        (INTEGERS, {"weight": codes, "weight_scale": scale, "weight_zero_point": random(64, 1)}),
        (INTEGERS, {"weight": codes[:, :90], "weight_scale": scale}),
        (INTEGERS, {"weight_zero_point": integers(64, 1)}),
    ]
    for number, (section, parts) in enumerate(damaged):
        with pytest.raises(SourceError) as error:
            read(section, **parts)
        assert "\n" not in str(error.value) and "layer" in str(error.value), number


def test_weights_that_were_left_in_floats_are_unchanged() -> None:
    weight = random(64, 96)
    for section in (BLOCKS, CHANNELS, FLOATS, INTEGERS):
        assert read(section, weight=weight).tensor is weight


def test_numbers_without_a_scale_are_refused_wherever_they_are(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from intaglio.exporters.files.safetensors_file import map_tensors

    save_file({"norm": random(64).to(torch.float8_e4m3fn)}, tmp_path / "plain.safetensors")
    with pytest.raises(SourceError, match="tensor norm has dtype F8_E4M3, expected one of F64"):
        map_tensors(tmp_path / "plain.safetensors")
    with pytest.raises(SourceError, match=r"layer\.experts: of float8_e4m3fn, without its weight_scale_inv"):
        read(BLOCKS, weight=random(64, 96), experts=random(2, 8, 8).to(torch.float8_e4m3fn))


def save(folder: Path, model_type: str, section: dict[str, Any]) -> Path:
    """A checkpoint in "quantized" whose matrices have 8 bits, and in "float" what they stand for."""
    import torch

    def store(weight: Any, seed: int) -> tuple[dict[str, Any], Any]:
        largest = weight.abs().amax(1, keepdim=True)
        if section["quant_method"] == "fp8":
            rows, columns = section["weight_block_size"]
            scale = random(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)).abs() / 100
            parts = {"weight": (100 * weight).to(torch.float8_e4m3fn), "weight_scale_inv": scale}
        elif section.get("format") == "int-quantized":
            scale = (largest / 127).to(torch.bfloat16)
            codes = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
            parts = {"weight": codes, "weight_scale": scale}
        else:
            parts = {"weight": (448 * weight / largest).to(torch.float8_e4m3fn), "weight_scale": largest / 448}
        return parts, read(section, **parts).tensor

    return save_stored(folder, model_type, section, store, LINEAR, **SIZES)


FORMATS = [
    ("integers", ("llama", "gemma3_text"), {**INTEGERS, **ACTIVATIONS}, "kept as compressed-tensors has them: 8 bits"),
    ("blocks", ("qwen3", "llama"), BLOCKS, "kept as fp8 has them: 8 bits, groups of 48"),
    ("channels", ("phi3", "mistral"), CHANNELS, "kept as fbgemm_fp8 has them: 8 bits"),
    ("compressed-tensors", ("gemma2", "qwen2"), FLOATS, "kept as compressed-tensors has them: 8 bits"),
    ("experts", ("mixtral", "qwen3_moe"), SMALL_BLOCKS, "kept as fp8 has them: 8 bits"),
]


@pytest.mark.proof
@pytest.mark.parametrize(
    ("model_type", "section", "note"),
    [(model_type, *rest) for _, model_types, *rest in FORMATS for model_type in model_types],
    ids=[f"{name}-{model_type}" for name, model_types, *_ in FORMATS for model_type in model_types],
)
def test_bundle_writes_the_text_of_the_numbers(
    model_type: str, section: dict[str, Any], note: str, tmp_path: Path
) -> None:
    checkpoint = save(tmp_path, model_type, section)
    result = export(str(checkpoint), tmp_path / "bundle")
    assert result.passed
    assert note in result.notes[0]
    rounded = section["quant_method"] in ("fp8", "fbgemm_fp8") or "config_groups" in section
    assert rounded == any("activations, which" in line for line in result.notes)
    products = sum(node.op_type == "GroupMatMul" for node in load(Bundle.open(tmp_path / "bundle").model_path).graph)
    kept = sum(int(line.split()[0]) for line in result.notes if "are kept" in line)
    assert products == kept - 2 * 4 * (
        model_type in ("mixtral", "qwen3_moe")
    )  # the first two products of an expert are one there
    prompts = ["Hello wo", "The", "A cat sat on"]
    texts = [each.tokens for each in generate(tmp_path / "bundle", prompts, max_new_tokens=30, batch=3)]
    assert export(str(tmp_path / "float"), tmp_path / "whole").passed
    assert texts == [each.tokens for each in generate(tmp_path / "whole", prompts, max_new_tokens=30, batch=3)]
