"""CheckEncoder: reject a model that cannot become integer-only, before calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import onnx_ir as ir

from intaglio.bundle.effect import Effect
from intaglio.errors import GraphError
from intaglio.graph_passes.contract import Counts, Pass, PassInputs
from intaglio.graph_passes.quantize_dequantize.region import is_embedding, is_normalization, model_region
from intaglio.runtime.sessions.step import PAST

SHOWN = 3  # nodes that an error names
# Operators on activations that no pass makes integer.
FLOATING = {
    "BatchNormalization", "Conv", "Elu", "GatherND", "GroupNormalization", "HardSigmoid", "HardSwish", "LeakyRelu",
    "Mish", "PRelu", "RMSNormalization", "Relu", "ScatterND", "Sigmoid", "Softplus", "Swish", "Tanh",
}  # fmt: skip


@dataclass(frozen=True)
class CheckEncoder(Pass):
    """Check that the model is an encoder of token ids whose operators have integer forms; rewrite nothing.

    Raises as `encoder_region` does, and for operators without an integer form, unless `allow_float`: calibration takes
    minutes, and `audit_integer_only` would refuse them after it.
    """

    name: ClassVar[str] = "check_encoder"
    effect: ClassVar[Effect] = Effect.EXACT
    allow_float: bool = False

    def _rewrite(self, model: ir.Model, inputs: PassInputs, counts: Counts) -> None:
        """Check `model`."""
        region = encoder_region(model)
        found = [node for node in region if node.domain == "" and node.op_type in FLOATING]
        if found and not self.allow_float:
            refuse(found)
        counts.add("tables", sum(map(is_embedding, region)))
        counts.add("normalisations", sum(map(is_normalization, region)))


def refuse(nodes: Sequence[ir.Node]) -> NoReturn:
    """Raise the `GraphError` that names nodes that compute in floating point."""
    names = ", ".join(f"{node.op_type} {node.name or node.outputs[0].name}" for node in nodes[:SHOWN])
    more = f" and {len(nodes) - SHOWN} more" if len(nodes) > SHOWN else ""
    raise GraphError(
        f"the encoder is not integer-only: {names}{more} compute in floating point. "
        "Allow them with --allow-float, or use the recipe int8-qdq, or int8-weights."
    )


def encoder_region(model: ir.Model) -> list[ir.Node]:
    """Return `model_region` of an encoder of token ids, for which the integer operators are designed.

    Raises `GraphError`, with the recipes to use instead, for

    1. a decoder, whose key-value caches (inputs `past_...`, or TensorScatter) have no integer form;
    2. a graph without an embedding table, such as for images or sound;
    3. a graph without a normalisation after one.
    """
    if found := _cache(model):
        raise GraphError(
            f"integer-only: expected an encoder, got a decoder (it has {found}). Recipes that fit a decoder: "
            "gptq, awq, rtn, lut, lut-sparse, mixed for 2 to 4 bits, int8-weights, int8-qdq for 8."
        )
    region = model_region(model)
    has_table = any(map(is_embedding, region))
    if not has_table or not any(map(is_normalization, region)):
        missing = "a LayerNormalization after an embedding table" if has_table else "an embedding table for token ids"
        inputs = ", ".join(str(value.name) for value in model.graph.inputs)
        raise GraphError(
            f"integer-only: expected an encoder of text, got a graph (inputs {inputs}) without {missing}. "
            "Use the recipe int8-qdq or int8-weights, which need neither."
        )
    return region


def _cache(model: ir.Model) -> str | None:
    """Return the part of the graph that only a decoder has, if any."""
    for value in model.graph.inputs:
        if str(value.name).startswith(PAST):
            return f"the input {value.name}"
    return next(
        (f"the node {node.name} (TensorScatter)" for node in model.graph if node.op_type == "TensorScatter"), None
    )
