"""Checkpoints of bitsandbytes, HQQ, MXFP4, NVFP4 and AWQ's second layout, packed here by their descriptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import packed_along_rows, quantized, save_stored

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError
from intaglio.exporters import export
from intaglio.exporters.checkpoints.quantized.formats import joined
from intaglio.runtime import generate

Array = np.ndarray[Any, Any]
Parts = dict[str, Any]  # arrays of NumPy, or tensors of torch
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
FOUR_BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}
EIGHT_BITS = {"quant_method": "bitsandbytes", "load_in_8bit": True}
HQQ = {"quant_method": "hqq"}
GEMV = {"quant_method": "awq", "version": "gemv", "bits": 4}
MX, NV = ({"quant_method": "compressed-tensors", "format": f"{kind}-pack-quantized"} for kind in ("mxfp4", "nvfp4"))
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
GPT_OSS = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def tensor(array: Any) -> Any:
    """As a tensor of torch."""
    import torch

    return array if torch.is_tensor(array) else torch.from_numpy(np.array(array))


def read(section: dict[str, Any], parts: Parts, name: str = "layer.weight") -> Any:
    """The weight that the parts form."""
    from intaglio.exporters.files.safetensors_file import MappedTensor

    path = "layer" if name == "layer.weight" else name
    join = "" if name != "layer.weight" else "."
    found = {f"{path}{join}{part}": MappedTensor(tensor(each), Path("x"), 0) for part, each in parts.items()}
    return joined(found, {"quantization_config": section})[name]


def nf4(rows: int, columns: int, block: int, nested: bool, random: np.random.Generator) -> tuple[Parts, Array]:
    """A weight of bitsandbytes in 4 bits, with any table."""
    indices = random.integers(0, 16, rows * columns).astype(np.uint8)
    table = np.sort(random.standard_normal(16)).astype(np.float32)
    blocks = -(-rows * columns // block)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": block, "dtype": "float16", "shape": [rows, columns]}
    parts: Parts = {"weight": (indices[0::2] << 4 | indices[1::2])[:, None], "weight.quant_map": table}
    if nested:
        scales = random.integers(0, 256, blocks).astype(np.uint8)
        outer = random.random(-(-blocks // 3)).astype(np.float32)
        outer_table = np.linspace(0, 1, 256, dtype=np.float32)
        state |= {"nested_blocksize": 3, "nested_offset": 0.25, "nested_dtype": "float32"}
        parts |= {"weight.nested_absmax": outer, "weight.nested_quant_map": outer_table}
        factors = outer_table[scales] * outer[np.arange(blocks) // 3] + np.float32(0.25)
    else:
        scales = factors = random.random(blocks).astype(np.float32)
    parts["weight.absmax"] = scales
    parts["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    numbers = table[indices] * factors[np.arange(rows * columns) // block]
    return parts, numbers.reshape(rows, columns)


@settings(max_examples=examples(40))
@given(st.data())
def test_tables_of_bitsandbytes_are_kept_or_decoded_to_the_bit(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 40)), 2 * data.draw(st.sampled_from([16, 32, 64]) | st.integers(1, 40))
    block, nested = data.draw(st.sampled_from([32, 64, 128])), data.draw(st.booleans())
    parts, numbers = nf4(rows, columns, block, nested, np.random.default_rng(data.draw(st.integers(0, 9))))
    found = read(FOUR_BITS, parts)
    assert found.shape == (rows, columns)
    assert (found.bits, found.group_size) == (4, block) if columns % block == 0 else found.form == "NF4"
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)


def int8(rows: int, columns: int, random: np.random.Generator) -> tuple[Parts, Array]:
    """A weight of bitsandbytes in 8 bits."""
    codes, largest = random.integers(-127, 128, (rows, columns)).astype(np.int8), random.random(rows, np.float32)
    parts: Parts = {"weight": codes, "SCB": largest, "weight_format": np.zeros((), np.uint8)}
    return parts, (largest / np.float32(127))[:, None] * codes.astype(np.float32)


def test_integers_of_bitsandbytes_are_kept() -> None:
    parts, numbers = int8(40, 96, np.random.default_rng(0))
    found = read(EIGHT_BITS, parts)
    assert (found.bits, found.group_size) == (8, 96)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)
    with pytest.raises(SourceError, match="weight_format is 2, expected 0, rows"):
        read(EIGHT_BITS, parts | {"weight_format": np.full((), 2, np.uint8)})


def hqq(rows: int, columns: int, bits: int, size: int, axis: int, random: np.random.Generator) -> tuple[Parts, Array]:
    """A weight of HQQ."""
    groups = rows * columns // size
    shape, factors = ((groups, size), (groups, 1)) if axis == 1 else ((size, groups), (1, groups))
    numbers = random.integers(0, 2**bits, shape)
    scale = random.random(factors).astype(np.float16)
    zero = (random.random(factors) * 2**bits).astype(np.float16)
    count = {8: 1, 4: 2, 3: 10, 2: 4}[bits]
    filled = np.zeros((-(-shape[0] // count) * count, shape[1]), np.int64)
    filled[: shape[0]] = numbers
    packed = sum(part << bits * (count - 1 - index) for index, part in enumerate(np.split(filled, count)))
    settings_ = {"nbits": bits, "group_size": size, "axis": axis, "view_as_float": 0}
    parts = {name: np.array(value, np.int32) for name, value in settings_.items()}
    parts |= {"W_q": packed.astype(np.int32 if bits == 3 else np.uint8), "scale": scale, "zero": zero}
    parts |= {"shape": np.array([rows, columns]), "packing": np.frombuffer(b"4bit_u8", np.uint8)}
    wide = scale.astype(np.float32)
    return parts, (wide * numbers.astype(np.float32) - wide * zero.astype(np.float32)).reshape(rows, columns)


@settings(max_examples=examples(60))
@given(st.data())
def test_zero_points_of_hqq_are_minimums(data: st.DataObject) -> None:
    bits, axis = data.draw(st.sampled_from([2, 3, 4, 8])), data.draw(st.sampled_from([0, 1]))
    size, rows = data.draw(st.sampled_from([16, 32, 64])), data.draw(st.sampled_from([8, 12, 40]))
    columns = size * 2 * data.draw(st.integers(1, 3))
    parts, numbers = hqq(rows, columns, bits, size, axis, np.random.default_rng(data.draw(st.integers(0, 9))))
    found = read(HQQ, parts)
    assert found.shape == (rows, columns)
    if axis == 1 and size % 32 == 0:
        assert (found.bits, found.group_size, found.has_minimums) == (bits, size, True)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)


def fp4(rows: int, columns: int, kind: str, random: np.random.Generator) -> tuple[Parts, Array]:
    """A weight of MXFP4 or NVFP4."""
    import torch

    indices = random.integers(0, 16, (rows, columns)).astype(np.uint8)
    packed = indices[:, 0::2] | indices[:, 1::2] << 4
    if kind == "mx":
        exponents = random.integers(100, 150, (rows, columns // 32)).astype(np.uint8)
        scales = np.exp2(exponents.astype(np.float32) - 127)
        return {"weight_packed": packed, "weight_scale": exponents}, E2M1[indices] * scales.repeat(32, 1)
    small = torch.from_numpy(random.random((rows, columns // 16), np.float32) * 400).to(torch.float8_e4m3fn)
    if kind == "modelopt":
        whole = np.float32(0.037)
        parts: Parts = {"weight": packed, "weight_scale": small, "weight_scale_2": np.array(whole)}
        scales = small.float().numpy() * whole
    else:
        whole = np.float32(270.5)
        parts = {"weight_packed": packed, "weight_scale": small, "weight_global_scale": np.array([whole])}
        scales = small.float().numpy() / whole
    return parts, E2M1[indices] * scales.repeat(16, 1)


@settings(max_examples=examples(40))
@given(st.data())
def test_floats_of_4_bits_are_read_to_the_bit(data: st.DataObject) -> None:
    kind, section = data.draw(st.sampled_from([("mx", MX), ("nv", NV), ("modelopt", MODELOPT)]))
    rows, columns = data.draw(st.integers(1, 20)), 32 * data.draw(st.integers(1, 4))
    parts, numbers = fp4(rows, columns, kind, np.random.default_rng(data.draw(st.integers(0, 9))))
    found = read(section, parts)
    assert found.shape == (rows, columns)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)


def experts(number: int, inputs: int, outputs: int, random: np.random.Generator) -> tuple[Parts, Array]:
    """The weights of GPT-OSS's experts in MXFP4."""
    indices = random.integers(0, 16, (number, outputs, inputs)).astype(np.uint8)
    blocks = (indices[..., 0::2] | indices[..., 1::2] << 4).reshape(number, outputs, inputs // 32, 16)
    exponents = random.integers(122, 126, (number, outputs, inputs // 32)).astype(np.uint8)
    numbers = E2M1[indices] * np.exp2(exponents.astype(np.float32) - 127).repeat(32, 2)
    return {"_blocks": blocks, "_scales": exponents}, numbers.swapaxes(1, 2)


def test_experts_of_gpt_oss_are_read_as_by_transformers() -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    parts, numbers = experts(3, 64, 24, np.random.default_rng(0))
    found = read(GPT_OSS, parts, "layer.experts.down_proj")
    assert found.shape == (3, 64, 24)
    theirs = convert_moe_packed_tensors(tensor(parts["_blocks"]), tensor(parts["_scales"]), dtype=torch.float32)
    np.testing.assert_array_equal(theirs.numpy(), numbers)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)


def gemv(rows: int, columns: int, size: int, random: np.random.Generator) -> tuple[Parts, Array]:
    """A weight of AWQ in the layout "gemv"."""
    each = quantized(random.standard_normal((rows, columns)).astype(np.float32), 4, size, symmetric=False)
    pad = -len(each.zeros[0]) % 16  # to more words than the zero points need
    zeros, scales = (np.pad(array, ((0, 0), (0, pad))) for array in (each.zeros, each.scales))
    words = [np.ascontiguousarray(packed_along_rows(numbers.T, 4).T) for numbers in (each.codes, zeros)]
    return {"qweight": words[0], "qzeros": words[1], "scales": scales}, each.weight


@pytest.mark.parametrize(("columns", "size"), [(64, 32), (256, 32), (128, 64), (384, 128)])
def test_rows_of_awq_are_read_to_the_bit(columns: int, size: int) -> None:
    parts, numbers = gemv(24, columns, size, np.random.default_rng(0))
    found = read(GEMV | {"group_size": size}, parts)
    assert (found.bits, found.group_size) == (4, size)
    np.testing.assert_array_equal(found.tensor.numpy(), numbers)


RANDOM = np.random.default_rng(1)
WHOLE: dict[str, tuple[dict[str, Any], Parts, str]] = {
    "nf4": (FOUR_BITS, nf4(8, 64, 64, False, RANDOM)[0], "layer.weight"),
    "nested": (FOUR_BITS, nf4(8, 64, 64, True, RANDOM)[0], "layer.weight"),
    "int8": (EIGHT_BITS, int8(8, 64, RANDOM)[0], "layer.weight"),
    "hqq": (HQQ, hqq(8, 64, 4, 32, 1, RANDOM)[0], "layer.weight"),
    "gemv": (GEMV | {"group_size": 32}, gemv(8, 64, 32, RANDOM)[0], "layer.weight"),
    "mx": (MX, fp4(8, 64, "mx", RANDOM)[0], "layer.weight"),
    "nv": (NV, fp4(8, 64, "nv", RANDOM)[0], "layer.weight"),
    "modelopt": (MODELOPT, fp4(8, 64, "modelopt", RANDOM)[0], "layer.weight"),
    "gpt-oss": (GPT_OSS, experts(2, 64, 24, RANDOM)[0], "layer.down_proj"),
}
UNUSED = {"int8": ("weight_format",), "hqq": ("group_size", "view_as_float", "packing")}


@pytest.mark.parametrize("kind", WHOLE)
def test_missing_or_cut_parts_get_one_line(kind: str) -> None:
    section, whole, name = WHOLE[kind]
    assert read(section, whole, name) is not None
    for part, each in whole.items():
        if part in UNUSED.get(kind, ()):
            continue
        fewer = {other: value for other, value in whole.items() if other != part}
        cut = tensor(each)
        changes = [fewer, fewer | {part: cut.reshape(-1)[:-1]}]
        changes += [fewer | {part: cut[: len(cut) - 1]}] if cut.dim() > 0 else []
        for changed in changes:
            with pytest.raises(SourceError) as error:
                read(section, changed, name)
            assert "\n" not in str(error.value) and "layer" in str(error.value), (part, str(error.value))


@pytest.mark.parametrize("part", ["zero_q", "scale_q", "zero_scale"])
def test_quantised_scales_of_hqq_are_refused(part: str) -> None:
    with pytest.raises(SourceError, match=f"its scales are stored as {part}"):
        read(HQQ, WHOLE["hqq"][1] | {part: np.zeros(3, np.uint8)})


def stored(make: Callable[..., tuple[Parts, Array]], *options: Any) -> Callable[[Any, int], tuple[Parts, Any]]:
    """Put random numbers of a format, as large as the weight's, into its place."""

    def store(weight: Any, seed: int) -> tuple[Parts, Any]:
        parts, numbers = make(*weight.shape, *options, np.random.default_rng(seed))
        factor = np.float32(2.0 ** np.round(np.log2(weight.std().item() / numbers.std())))
        for name in ("weight.absmax", "SCB", "scale", "scales", "weight_global_scale", "weight_scale_2"):
            if name in parts:
                parts[name] = parts[name] / factor if "global" in name else parts[name] * factor
        if "weight_packed" in parts and "weight_global_scale" not in parts:
            parts["weight_scale"] = (parts["weight_scale"] + np.log2(factor)).astype(np.uint8)
        return {name: tensor(part).clone() for name, part in parts.items()}, tensor(numbers * factor)

    return store


def _gpt_oss(weight: Any, seed: int) -> tuple[Parts, Any]:
    parts, numbers = experts(*weight.shape, np.random.default_rng(seed))
    return {name: tensor(part) for name, part in parts.items()}, tensor(numbers)


FORMATS = [
    ("hqq", ("llama", "qwen2"), HQQ, stored(hqq, 4, 32, 1), "4 bits, groups of 32"),
    ("nf4", ("qwen3", "llama"), FOUR_BITS, stored(nf4, 64, False), "as bitsandbytes has them: 4 bits, groups of 64"),
    ("int8", ("phi3", "mistral"), EIGHT_BITS, stored(int8), "8 bits, groups of 64"),
    ("mxfp4", ("gemma2", "qwen3"), MX, stored(fp4, "mx"), "4 bits, groups of 32"),
    ("nvfp4", ("mistral", "granite"), NV, stored(fp4, "nv"), "4 bits, groups of 16"),
    ("modelopt", ("llama", "phi3"), MODELOPT, stored(fp4, "modelopt"), "4 bits, groups of 16"),
    ("gemv", ("qwen2", "llama"), GEMV | {"group_size": 32}, stored(gemv, 32), "4 bits, groups of 32"),
    ("gpt-oss", ("gpt_oss",), GPT_OSS, _gpt_oss, "16 weights are kept as mxfp4 has them: 4 bits"),
]
EXPORTED = {
    f"{name}-{model_type}": (model_type, *rest) for name, model_types, *rest in FORMATS for model_type in model_types
}


@pytest.mark.proof
@pytest.mark.parametrize(("model_type", "section", "store", "note"), list(EXPORTED.values()), ids=list(EXPORTED))
def test_bundle_writes_the_text_of_the_numbers(
    model_type: str, section: dict[str, Any], store: Any, note: str, tmp_path: Path
) -> None:
    endings = ("gate_up_proj", "down_proj") if model_type == "gpt_oss" else ("_proj.weight",)
    changed = {"intermediate_size": 96} if model_type == "gpt_oss" else {}
    checkpoint = save_stored(tmp_path, model_type, section, store, endings, **changed)
    result = export(str(checkpoint), tmp_path / "bundle")
    assert result.passed
    assert any(note in line for line in result.notes), result.notes
    graph = load(Bundle.open(tmp_path / "bundle").model_path).graph
    weights = sum(each.const_value.nbytes for each in graph.initializers.values() if each.const_value is not None)
    assert weights < 1.4 * (checkpoint / "model.safetensors").stat().st_size  # scales in float32
    products = sum(node.op_type == "GroupMatMul" for node in graph)
    assert products == sum(int(line.split()[0]) for line in result.notes if "are kept" in line)
    prompts = ["Hello wo", "The", "A cat sat on"]
    texts = [each.tokens for each in generate(tmp_path / "bundle", prompts, max_new_tokens=30, batch=3)]
    assert export(str(tmp_path / "float"), tmp_path / "whole").passed
    assert texts == [each.tokens for each in generate(tmp_path / "whole", prompts, max_new_tokens=30, batch=3)]
