"""Damage to a compressed bundle that keeps its graph valid, to test validation itself.

    scales    one layer's scales are doubled (of a lookup table: its entries; of a float weight: the weight)
    table     the entries of one layer's lookup table change places in each row; without lookup tables, the rows of
              the largest embedding table do
    indices   1 % of the stored integers of every layer are others (of a float weight: other weights of the matrix)

The damaged bundle has correct hashes, so that only running it reveals the damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.model_file import load, save
from intaglio.plugins import DOMAIN
from intaglio.plugins.bit_packing import pack, unpack

FLIPPED = 0.01  # fraction of the integers


@dataclass(frozen=True)
class Layer:
    """A linear layer's weight as stored.

    `integers`: int32 words of `bits`-bit numbers, or int8; the weight itself where it is floating point.
    `scales`: their factors, or a table of their values; None for a floating-point weight.
    `shift`: of an integer layer, the power of two that its sums are divided by, in place of scales.
    """

    integers: ir.Value
    scales: ir.Value | None
    bits: int
    table: bool = False
    shift: bool = False


def damaged(bundle: Path, output: Path, kind: str, seed: int = 0) -> Path:
    """A copy of `bundle` at `output` with damage of `kind`, one of `KINDS`."""
    opened = Bundle.open(bundle)
    model = load(opened.model_path)
    KINDS[kind](model, np.random.default_rng(seed))
    with create(output, force=True) as draft:
        draft.copy_companions(opened)
        draft.manifest = msgspec.structs.replace(opened.manifest, engines=[])
        save(model, draft.model_path, beside=opened.data_of_others())
    return output


def layers(model: ir.Model) -> list[Layer]:
    """The compressed layers of a graph in order, each weight once; if there are none, the others."""
    found = {layer.integers: layer for layer in _layers(model)}.values()
    return [layer for layer in found if layer.scales is not None] or list(found)


def _layers(model: ir.Model) -> Iterator[Layer]:
    for node in model.graph.all_nodes():
        constants = [value if value is not None and value.const_value is not None else None for value in node.inputs]
        match (node.domain, node.op_type), constants:
            case (domain, "LutMatMul"), [_, ir.Value() as packed, ir.Value() as lut, *_] if domain == DOMAIN:
                yield Layer(packed, lut, node.attributes["bits"].as_int(), table=True)
            case (domain, "GroupMatMul"), [_, ir.Value() as packed, ir.Value() as scales, *_] if domain == DOMAIN:
                yield Layer(packed, scales, node.attributes["bits"].as_int())
            case (domain, "IntLinear"), [_, ir.Value() as weight, _, _, ir.Value() as shift, *_] if domain == DOMAIN:
                yield Layer(weight, shift, 8, shift=True)
            case ("", "DequantizeLinear"), [ir.Value() as weight, ir.Value() as scales, *_] if _is_matrix(weight):
                if not any(user.op_type == "Gather" for user, _ in node.outputs[0].uses()):
                    yield Layer(weight, scales, 8)
            case ("", "MatMul" | "Gemm"), [_, ir.Value() as weight, *_] if _is_matrix(weight):
                yield Layer(weight, None, 0)
            case ("", "Cast"), [ir.Value() as weight] if _is_matrix(weight):
                yield Layer(weight, None, 0)


def _is_matrix(value: ir.Value) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == 2


def _double_scales(model: ir.Model, random: np.random.Generator) -> None:
    every = layers(model)
    layer = every[len(every) // 2]
    value = layer.integers if layer.scales is None else layer.scales
    array = _array(value)
    _set(value, array - 1 if layer.shift else array * np.asarray(2, array.dtype))


def _shuffle_table(model: ir.Model, random: np.random.Generator) -> None:
    tables = [layer.scales for layer in layers(model) if layer.table]
    if tables and (value := tables[len(tables) // 2]) is not None:
        _set(value, random.permuted(_array(value), axis=1))
        return
    looked_up = [node.inputs[0] for node in model.graph.all_nodes() if node.op_type == "Gather"]
    embeddings = [value for each in looked_up if (value := _stored(each)) is not None and _is_matrix(value)]
    largest = max(embeddings, key=lambda value: _array(value).size)
    _set(largest, random.permutation(_array(largest), axis=0))


def _stored(value: ir.Value | None) -> ir.Value | None:
    """The initializer behind a dequantisation or a cast."""
    while value is not None and value.const_value is None and (producer := value.producer()) is not None:
        value = producer.inputs[0]
    return value


def _flip_indices(model: ir.Model, random: np.random.Generator) -> None:
    for layer in layers(model):
        array = _array(layer.integers)
        packed = array.dtype == np.int32
        numbers: npt.NDArray[Any] = unpack(array, layer.bits) if packed else array
        if layer.scales is None:
            others = random.permuted(numbers.reshape(-1)).reshape(numbers.shape)
        else:
            low, high = (0, 1 << layer.bits) if packed else (-127, 128)
            others = random.integers(low, high, numbers.shape).astype(numbers.dtype)
        numbers = np.where(random.random(numbers.shape) < FLIPPED, others, numbers)
        _set(layer.integers, pack(numbers, layer.bits) if packed else numbers)


def _array(value: ir.Value) -> npt.NDArray[Any]:
    assert value.const_value is not None
    return np.array(value.const_value.numpy())


def _set(value: ir.Value, array: npt.NDArray[Any]) -> None:
    value.const_value = ir.tensor(np.ascontiguousarray(array), name=value.name)


KINDS: dict[str, Callable[[ir.Model, np.random.Generator], None]] = {
    "scales": _double_scales,
    "table": _shuffle_table,
    "indices": _flip_indices,
}
