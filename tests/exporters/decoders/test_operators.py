"""Each operator computes in torch what its node computes in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.runtime import open_engine

BATCH, HEADS, KV_HEADS, TOKENS, SLOTS, DIM = 2, 4, 2, 3, 7, 8


def test_nodes_equal_the_computation_in_torch(tmp_path: Path) -> None:
    import onnx_ir as ir
    import torch

    from intaglio.exporters.decoders import experts, operators
    from intaglio.exporters.writing.traced_graph import quiet

    class All(torch.nn.Module):
        def forward(
            self, q: Any, new: Any, cache: Any, start: Any, mask: Any, cos: Any, sin: Any, weight: Any, sinks: Any,
            rows: Any, chosen: Any, matrices: Any,
        ) -> Any:  # fmt: skip
            keys = operators.tensor_scatter(cache, new, start)
            order = chosen.argsort()
            counts = (chosen[None] == torch.arange(3)[:, None]).sum(1)
            flat = rows.reshape(-1, rows.shape[-1])[order]
            return (
                keys,
                operators.attention(q, keys, keys * 2, mask),
                operators.attention(q, keys, keys * 2, mask, softcap=3.0),
                operators.attention(q, keys, keys[..., 1:], mask),
                operators.attention(q, keys, keys * 2, mask, direct=False),
                operators.attention(q, keys, keys * 2, mask, softcap=3.0, sinks=sinks),
                operators.rms_norm(q, weight, 1e-3),
                operators.rotary(q, cos, sin, False),
                operators.rotary(q, cos, sin, True),
                operators.rotary(q, cos[..., :2], sin[..., :2], False),
                operators.rows_at(rows, start[:, None] % TOKENS),
                2 * experts.expert_products(flat, chosen[order], counts, matrices, False),
                2 * experts.expert_products(flat, chosen[order], counts, matrices, True),
            )

    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=random)

    mask = torch.rand(BATCH, 1, TOKENS, SLOTS, generator=random) > 0.5
    mask[..., 0] = True
    angles = 6 * torch.rand(BATCH, TOKENS, DIM // 2, generator=random)
    # No row is for the last expert, whose product is of no rows.
    chosen = torch.tensor([1, 0, 1, 1, 0, 1])
    inputs = (
        normal(BATCH, HEADS, TOKENS, DIM), normal(BATCH, KV_HEADS, TOKENS, DIM), normal(BATCH, KV_HEADS, SLOTS, DIM),
        torch.tensor([1, 4]), mask, angles.cos(), angles.sin(), normal(DIM), normal(HEADS),
        normal(BATCH, TOKENS, DIM), chosen, normal(3, DIM, DIM),
    )  # fmt: skip
    module = All()
    expected = [each.numpy() for each in module(*inputs)]
    names = [f"in{index}" for index in range(len(inputs))]
    with quiet(), operators.as_nodes():
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=24, input_names=names, optimize=False, verbose=False,
            output_names=[f"out{index}" for index in range(len(expected))],
        )  # fmt: skip
    assert program is not None
    model = program.model
    experts.expand(model, _sliced(model))
    ir.save(model, tmp_path / "model.onnx")
    with open_engine(tmp_path / "model.onnx") as engine:
        found = engine.run({name: each.numpy() for name, each in zip(names, inputs, strict=True)})
    for index, wanted in enumerate(expected):
        np.testing.assert_allclose(found[f"out{index}"], wanted, atol=2e-6, rtol=2e-6, err_msg=str(index))


def _sliced(model: Any) -> Any:
    """The weight of an expert as nodes that cut it from all, where the real export has an initializer."""
    import onnx_ir as ir

    def weight_of(value: Any, expert: int, transposed: bool) -> Any:
        number = ir.Value(name=f"number_{expert}_{transposed}", const_value=ir.tensor(np.array(expert)))
        number.type, number.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([])
        model.graph.register_initializer(number)
        part = ir.Node("", "Gather", [value, number], [ir.AttrInt64("axis", 0)])
        nodes = [part] if transposed else [part, ir.Node("", "Transpose", part.outputs)]
        first = next(node for node in model.graph if node.op_type == "ExpertProducts")
        model.graph.insert_before(first, nodes)
        return nodes[-1].outputs[0]

    return weight_of


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_grouped_product_gives_each_query_head_its_own(heads: int) -> None:
    import torch

    from intaglio.exporters.decoders.operators import grouped_product

    x, y = torch.randn(2, 4, 3, 5), torch.randn(2, heads, 5, 6)
    expected = x @ y.repeat_interleave(4 // heads, 1)
    torch.testing.assert_close(grouped_product(x, y), expected)
