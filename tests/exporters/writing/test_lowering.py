"""Programs are lowered node by node where that is enough, to the graph that a second trace gives."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import patch

import onnx_ir as ir
import pytest
import torch
from torch.export import Dim
from torch.onnx._internal.exporter import _fx_passes

from intaglio.exporters.writing.lowering import single_trace
from intaglio.exporters.writing.traced_graph import quiet


class Casts(torch.nn.Module):
    """Casts that do nothing, casts that convert, operators of booleans, and a region without gradients."""

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            angles = x.float().cos()
        mask = allowed & (x[:, :1].to(torch.float64) > 0)
        return (torch.nn.functional.silu(x) * angles).to(x.dtype), mask


class Promotes(torch.nn.Module):
    """Operators of two dtypes, of numbers, and of integers that give fractions; some need no cast."""

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = allowed.sum(-1, keepdim=True)
        return (
            x.half() * x + count,
            x.pow(2).mean(-1) + x.sum(-1),
            count.sqrt() / 3,
            allowed * 2,
            count.half() - x.half(),
        )


class Writes(torch.nn.Module):
    """An operator that writes to its input."""

    def forward(self, x: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        result = x.clone()
        result.masked_fill_(allowed, 1.0)
        return result


def graph(module: torch.nn.Module, once: bool) -> ir.Model:
    """The graph of `module`, with or without `single_trace`."""
    example = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    rows = {0: Dim("rows")}
    with quiet(), single_trace() if once else nullcontext():
        program = torch.onnx.export(
            module.eval(), example, dynamo=True, dynamic_shapes=(rows, rows), optimize=False, verbose=False
        )
    assert program is not None
    return program.model


def operators(model: ir.Model) -> list[tuple[str, list[ir.DataType | None]]]:
    """Each operator but casts to the dtype that a value has already, with the types of its outputs."""
    return [
        (node.op_type, [output.dtype for output in node.outputs])
        for node in model.graph
        if node.op_type != "Cast" or node.inputs[0].dtype != node.outputs[0].dtype  # type: ignore[union-attr]
    ]


def test_lowered_program_gives_the_same_operators() -> None:
    with patch.object(_fx_passes, "decompose_with_registry", side_effect=AssertionError("traced again")):
        found = operators(graph(Casts(), once=True))
    assert found == operators(graph(Casts(), once=False))
    assert "Cast" in [name for name, _ in found]


def test_inputs_of_one_operator_are_cast_to_one_dtype() -> None:
    def cast(once: bool) -> list[tuple[str, object, torch.dtype]]:
        module = torch.export.export(Promotes(), (torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool))).graph_module
        with quiet(), single_trace() if once else nullcontext():
            _fx_passes.insert_type_promotion_nodes(module)
        return [
            (str(node), node.target, node.meta["val"].dtype)
            for node in module.graph.nodes
            if isinstance(node.meta.get("val"), torch.Tensor)
        ]

    found = cast(once=True)
    assert found == cast(once=False)
    assert sum(name.startswith("convert_element_type") for name, _, _ in found) > 4


def test_program_that_writes_to_its_inputs_is_traced_again() -> None:
    retraced = _fx_passes.decompose_with_registry
    with patch.object(_fx_passes, "decompose_with_registry", side_effect=retraced) as again:
        found = operators(graph(Writes(), once=True))
    assert again.call_count == 1
    assert found == operators(graph(Writes(), once=False))


@pytest.mark.parametrize("fails", [False, True])
def test_exporter_of_torch_is_as_before_afterwards(fails: bool) -> None:
    before = _fx_passes.decompose_with_registry
    with pytest.raises(ZeroDivisionError) if fails else nullcontext(), single_trace():
        assert _fx_passes.decompose_with_registry is not before
        _ = 1 / (1 - fails)
    assert _fx_passes.decompose_with_registry is before
