"""Weights in groups become blocks with the same numbers, and containers are read again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.gguf.block_encoding import encoded
from intaglio.exporters.checkpoints.gguf.blocks import TYPES
from intaglio.exporters.checkpoints.gguf.container import read_container
from intaglio.exporters.checkpoints.gguf.container_writing import NewTensor, write_container
from intaglio.exporters.checkpoints.gguf.super_blocks import factored
from intaglio.exporters.checkpoints.quantized.grouped_weight import GroupedWeight, Groups
from intaglio.plugins.bit_packing import pack


def weight_of(bits: int, zeros: Any, scales: Any, minimums: Any = None, group_size: int = 32, seed: int = 0) -> Any:
    """A weight of random codes, of as many rows and groups as its scales."""
    rows, groups = scales.shape
    codes = np.random.default_rng(seed).integers(0, 2**bits, (rows, groups * group_size), np.uint8)
    found = Groups(pack(codes, bits), scales, np.broadcast_to(np.uint8(zeros), scales.shape), minimums)
    return GroupedWeight(codes.shape, bits, group_size, lambda: found, None, minimums is not None)


def halves(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random float16 numbers, in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16).astype(np.float32)


@settings(max_examples=examples(60))
@given(st.data())
def test_the_library_decodes_the_same_numbers(data: st.DataObject) -> None:
    bits, seed = data.draw(st.sampled_from([2, 3, 4, 5, 6, 8])), data.draw(st.integers(0, 99))
    group_size = data.draw(st.sampled_from([32, 64, 128, 256]))
    scales = halves(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3)), seed=seed)
    symmetric = bits == 8 or data.draw(st.booleans())
    zeros = 2 ** (bits - 1) if symmetric else np.random.default_rng(seed).integers(0, 2**bits, scales.shape)
    minimums = None
    if bits < 6 and data.draw(st.booleans()):
        zeros, minimums = 0, halves(*scales.shape, seed=seed + 1)
    weight = weight_of(bits, zeros, scales, minimums, group_size, seed)
    number, blocks = encoded("layer", [weight])
    found = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number))
    np.testing.assert_array_equal(found, weight.tensor.numpy())


@pytest.mark.parametrize(
    ("bits", "zeros", "minimum", "expected"),
    [
        (2, 2, None, "Q4_0"),
        (3, 7, None, "Q4_0"),
        (4, 8, None, "Q4_0"),
        (4, 0, 0.5, "Q4_1"),
        (4, 0, None, "Q4_1"),
        (5, 16, None, "Q5_0"),
        (5, 0, 0.5, "Q5_1"),
        (6, 32, None, "Q8_0"),
        (8, 128, None, "Q8_0"),
        (8, 120, None, ""),
    ],
)
def test_the_smallest_type_that_holds_a_weight(bits: int, zeros: int, minimum: float | None, expected: str) -> None:
    scales = halves(8, 4)
    weight = weight_of(bits, zeros, scales, None if minimum is None else np.full(scales.shape, minimum, np.float32))
    if expected:
        assert TYPES[encoded("layer", [weight])[0]].name == expected
    else:
        with pytest.raises(SourceError, match=r"^layer: codes less zero points of 8 bits"):
            encoded("layer", [weight])


@pytest.mark.parametrize(("name", "type_"), [("Q4_K", 12), ("Q5_K", 13), ("Q6_K", 14)])
def test_blocks_of_a_k_type_are_written_again(name: str, type_: int) -> None:
    """Byte for byte where each block's largest magnitudes have the largest integers, as llama.cpp makes them."""
    random, kind = np.random.default_rng(type_), TYPES[type_]
    blocks = random.integers(0, 256, (6, kind.bytes), np.uint8)
    halves_at = (208,) if name == "Q6_K" else (0, 2)
    for at in halves_at:
        blocks[:, at : at + 2] = random.uniform(0.001, 0.1, (6, 1)).astype("<f2").view(np.uint8)
    if name == "Q6_K":
        blocks[:, 192] = 128  # -128
    else:
        blocks[:, 4], blocks[:, 8] = blocks[:, 4] | 63, blocks[:, 8] | 63
    assert kind.decode is not None
    codes = kind.decode(blocks)
    shape, size = (2, 3 * 256), kind.elements // kind.groups
    scales = codes.scales.reshape(2, -1)
    minimums = None if codes.minimums is None else codes.minimums.reshape(2, -1)
    zeros = np.full(scales.shape, codes.zero_point, np.uint8)
    groups = Groups(pack(codes.numbers.reshape(shape), kind.bits), scales, zeros, minimums)
    weight = GroupedWeight(shape, kind.bits, size, lambda: groups, None, minimums is not None)
    number, written = encoded("layer", [weight])
    assert TYPES[number].name == name
    np.testing.assert_array_equal(written.reshape(6, -1), blocks)
    np.testing.assert_array_equal(gguf.quants.dequantize(written, gguf.GGMLQuantizationType(number)), weight.tensor)


@pytest.mark.parametrize("name", ["IQ4_NL", "MXFP4"])
def test_levels_are_written_as_the_blocks_that_have_them(name: str) -> None:
    number, kind = next(item for item in TYPES.items() if item[1].name == name)
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (6, kind.bytes), np.uint8)
    blocks[:, 1 if name == "IQ4_NL" else 0] = [20, 40, 60, 100, 110, 120]  # scales that are finite
    assert kind.decode is not None
    codes = kind.decode(blocks)
    scales = codes.scales.reshape(2, 3)
    groups = Groups(pack(codes.numbers.reshape(2, 96), 4), scales, np.full(scales.shape, 8, np.uint8))
    weight = GroupedWeight((2, 96), 4, 32, lambda: groups, levels=kind.levels)
    found, written = encoded("layer", [weight])
    assert found == number
    np.testing.assert_array_equal(written.reshape(6, -1), blocks)
    with pytest.raises(SourceError, match=r"^layer: its codes stand for levels.* but for IQ4_NL and MXFP4"):
        encoded("layer", [replace(weight, levels=kind.levels * np.float32(1.5))])
    with pytest.raises(SourceError, match=r"^layer: its codes stand for levels"):
        encoded("layer", [replace(weight, read=lambda: groups._replace(scales=scales / 3))])


def test_asymmetric_weights_whose_minimums_are_no_halves_take_five_bits() -> None:
    scales = np.full((1, 1), np.float32(np.float16(0.1)))
    assert TYPES[encoded("layer", [weight_of(4, 11, scales)])[0]].name == "Q5_0"


def test_numbers_that_are_no_halves_are_refused_by_name() -> None:
    scales = halves(2, 2)
    with pytest.raises(SourceError, match=r"^layer: its scales are no float16 numbers.*scale_dtype: float16"):
        encoded("layer", [weight_of(4, 8, scales / 3)])
    with pytest.raises(SourceError, match=r"^layer: its minimums are no float16 numbers"):
        encoded("layer", [weight_of(4, 0, scales, scales / 3)])
    with pytest.raises(SourceError, match=r"^layer: groups of 16, and only those of Q6_K"):
        encoded("layer", [weight_of(6, 32, scales, group_size=16)])
    ordered = weight_of(4, 8, scales)
    with pytest.raises(SourceError, match=r"^layer: .*desc_act"):
        encoded("layer", [GroupedWeight(ordered.shape, 4, 32, ordered.read, np.arange(64))])


def test_a_written_container_is_read_again(tmp_path: Path) -> None:
    values = {"general.architecture": "llama", "a": True, "b": 7, "c": 0.5, "d": ["x", "é"], "e": [1, -2], "f": [0.25]}
    arrays = {"one": halves(3, 5), "two": halves(7)}
    tensors = {name: NewTensor(array.shape, 0, array.tobytes) for name, array in arrays.items()}
    path = tmp_path / "model.gguf"
    write_container(path, values, tensors)
    found, theirs = read_container(path), gguf.GGUFReader(path)
    assert {
        key: each.tolist() if isinstance(each, np.ndarray) else each for key, each in found.values.items()
    } == values
    assert {key: theirs.fields[key].contents() for key in values} == values
    for name, tensor in zip(arrays, theirs.tensors, strict=True):
        np.testing.assert_array_equal(found.tensors[name].rows().view("<f4").reshape(arrays[name].shape), arrays[name])
        np.testing.assert_array_equal(tensor.data, arrays[name])


def test_scales_that_are_no_small_integers_times_a_half_are_no_super_blocks() -> None:
    assert factored(np.array([[1.0, 2.0, 3.5]], np.float32), 0, 63) is not None
    assert factored(np.array([[1.0, np.pi]], np.float32), 0, 63) is None
    assert factored(np.array([[1.0, -1.0]], np.float32), 0, 63) is None
    found = factored(np.zeros((2, 3), np.float32), -128, 127)
    assert found is not None and not found.halves.any() and not found.integers.any()
