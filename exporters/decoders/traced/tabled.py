"""Weights that the checkpoint stores in tables: products are LutMatMul, and CsrMatMul of the sparse numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.exporters.checkpoints.quantized.tabled_weight import TabledWeight, Tables
from intaglio.exporters.decoders.traced.grouped import (
    ACTIVATION_BITS,
    FLOATS,
    WORDS,
    import_operators,
    initializer,
    products_by,
    replace_product,
)
from intaglio.plugins.bit_packing import WORD
from intaglio.plugins.registry import DOMAIN

SPARSE = ("values", "columns", "row_offsets")  # as CsrMatMul gets them


def keep_tables(model: ir.Model, weights: Mapping[ir.Value, TabledWeight]) -> None:
    """Replace each MatMul by a weight of `weights`, stored [K, N], by LutMatMul and CsrMatMul.

    Raises `SourceError` for a weight that the graph also uses otherwise.
    """
    for value, weight in weights.items():
        name = str(value.name).removesuffix("_transposed")
        for node in products_by(value, weight.shape):
            _replace(model.graph, node, weight, _constants(model.graph, name, weight))
        del model.graph.initializers[str(value.name)]
    import_operators(model.graph)


def _replace(graph: ir.Graph, node: ir.Node, weight: TabledWeight, constants: Mapping[str, ir.Value]) -> None:
    attributes = {"bits": weight.bits, "K": weight.shape[1], "activation_bits": ACTIVATION_BITS}
    product = ir.node("LutMatMul", [node.inputs[0], constants["packed"], constants["lut"]], attributes, domain=DOMAIN)
    made = [product]
    if weight.sparse:
        sparse = [constants[part] for part in SPARSE]
        made.append(ir.node("CsrMatMul", [node.inputs[0], *sparse, product.outputs[0]], domain=DOMAIN))
    replace_product(graph, node, product, made)


def _constants(graph: ir.Graph, name: str, weight: TabledWeight) -> dict[str, ir.Value]:
    """The inputs of the operators by their names, read from the checkpoint when the graph is written."""
    channels, inputs = weight.shape
    kinds = {
        "packed": (WORDS, [channels, inputs * weight.bits // WORD]),
        "lut": (FLOATS, [channels, 1 << weight.bits]),
    }
    if weight.sparse:
        kinds |= {
            "values": (FLOATS, [weight.sparse]),
            "columns": (WORDS, [weight.sparse]),
            "row_offsets": (WORDS, [channels + 1]),
        }
    made = {}
    for kind, (dtype, shape) in kinds.items():
        full = f"{name}.{'sparse.' if kind in SPARSE else ''}{kind}"

        def tensor(kind: str = kind, full: str = full) -> ir.TensorProtocol:
            return ir.Tensor(np.ascontiguousarray(_part(weight.read(), kind)), name=full)

        made[kind] = initializer(graph, ir.LazyTensor(tensor, dtype, ir.Shape(shape), name=full))
    return made


def _part(tables: Tables, kind: str) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = getattr(tables.sparse if kind in SPARSE else tables, kind)
    return found
