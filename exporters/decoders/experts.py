"""Mixture of experts: each token's rows go through the experts that its router chose, and no others are computed.

The rows are sorted by expert, so that each expert multiplies one block of them. While tracing, the products of all
experts are one node, which `expand` replaces by one for each: a MatMul of rows, or of none, with a weight of its own,
which every graph pass can compress.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.onnx.ops import symbolic
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from intaglio.exporters.decoders import operators
from intaglio.exporters.decoders.operators import DOMAIN

NAME = "intaglio"  # of this way to compute experts among those of transformers
PRODUCTS = "ExpertProducts"  # the node of all products, between tracing and `expand`


def _experts(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The weighted sum of each token's experts.

    hidden_states  [tokens, width]
    top_k_index    int64 [tokens, chosen], the experts of each token
    top_k_weights  [tokens, chosen]
    """
    parts: Any = module
    chosen = top_k_index.shape[-1]
    by_row = top_k_index.reshape(-1)
    count = by_row.shape[0]
    _, order = torch.sort(by_row * count + torch.arange(count))  # no two are equal, so that the order is stable
    experts = by_row[order]
    counts = (experts[None] == torch.arange(parts.num_experts)[:, None]).sum(1)

    def product(x: Tensor, name: str) -> Tensor:
        found = expert_products(x, experts, counts, getattr(parts, name), parts.is_transposed)
        return found + getattr(parts, f"{name}_bias")[experts] if parts.has_bias else found

    rows = hidden_states[order // chosen]
    if parts.has_gate:
        inside = parts._apply_gate(product(rows, "gate_up_proj"))
    else:
        inside = parts.act_fn(product(rows, "up_proj"))
    outputs = product(inside, "down_proj")
    if parts.has_post_expert_norm:
        outputs = parts.post_expert_norm(outputs)
    back = torch.zeros_like(order).scatter(0, order, torch.arange(count))
    by_token = outputs[back].reshape(-1, chosen, outputs.shape[-1]) * top_k_weights[..., None]
    return by_token.sum(1).to(hidden_states.dtype)


ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)


def expert_products(x: Tensor, experts: Tensor, counts: Tensor, weight: Tensor, transposed: bool) -> Tensor:
    """The rows of `x` times the matrix of the expert that each belongs to, [rows, outputs].

    x        [rows, inputs], sorted by expert
    experts  int64 [rows], ascending
    counts   int64 [experts], the rows of each
    weight   [experts, outputs, inputs]; `transposed`: [experts, inputs, outputs]
    """
    if not operators.tracing():
        matrices = weight[experts]
        return (x[:, None] @ (matrices if transposed else matrices.transpose(1, 2)))[:, 0]
    outputs = weight.shape[2 if transposed else 1]
    shape = (x.shape[0], outputs)
    return symbolic(
        f"{DOMAIN}::{PRODUCTS}",
        [x, counts, weight],
        {"transposed": int(transposed)},
        dtype=x.dtype,
        shape=shape,
        version=1,
    )


def expand(model: ir.Model, weight_of: Callable[[ir.Value, int, bool], ir.Value]) -> None:
    """Replace the nodes of all products by one MatMul for each expert.

    `weight_of(value, expert, transposed)` returns the weight [inputs, outputs] of an expert, an initializer of the
    graph; `transposed` is whether `value`, that of all experts, is [experts, inputs, outputs].
    """
    for node in list(model.graph):
        if node.op_type != PRODUCTS:
            continue
        x, counts, weight = node.inputs
        assert x is not None and weight is not None and weight.shape is not None
        number = int(str(weight.shape[0]))
        split = ir.Node("", "Split", [x, counts], [ir.AttrInt64("axis", 0)], num_outputs=number)
        made = [split]
        for expert, rows in enumerate(split.outputs):
            matrix = weight_of(weight, expert, bool(node.attributes["transposed"].as_int()))
            made.append(ir.Node("", "MatMul", [rows, matrix]))
        made.append(ir.Node("", "Concat", [each.outputs[0] for each in made[1:]], [ir.AttrInt64("axis", 0)]))
        for each in made:
            each.metadata_props.update(node.metadata_props)
        model.graph.insert_before(node, made)
        result = made[-1].outputs[0]
        result.type, result.shape = node.outputs[0].type, node.outputs[0].shape
        node.outputs[0].replace_all_uses_with(result)
        model.graph.remove(node, safe=True)
