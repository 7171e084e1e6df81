"""Rewrite the graph of another tool's decoder to take a step as ours do; see `runtime/sessions/step.py`.

Each attention with a cache becomes a write into a buffer of the cache, and ONNX's Attention with the mask of the step.
What the graph computed its own masks and lengths from is left unused, and removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import common

from intaglio.bundle.bundle import TensorSpec
from intaglio.errors import SourceError
from intaglio.exporters.decoders.foreign import concatenated, group_query, onnx_attention
from intaglio.exporters.decoders.foreign.logits import gather_wanted
from intaglio.exporters.decoders.foreign.matmul_nbits import keep_nbits
from intaglio.exporters.decoders.foreign.norms import standard_norms
from intaglio.exporters.decoders.foreign.older_opset import to_newer_opset
from intaglio.exporters.decoders.foreign.original import POSITIONS, TOKENS, WANTED
from intaglio.exporters.decoders.foreign.site import Nodes, Site
from intaglio.exporters.writing.graph_writer import IR_VERSION, OPSET, graph_input
from intaglio.runtime.sessions.step import (
    ATTENTION_MASK,
    BATCH,
    CAPACITY,
    INPUT_IDS,
    LOGIT_INDICES,
    LOGITS,
    PAST,
    PRESENT,
    STEP,
    WRITE_START,
)
from intaglio.runtime.sessions.step import POSITIONS as STEP_POSITIONS
from intaglio.runtime.sessions.step import (
    WANTED as WANTED_TOKENS,
)

SITES: tuple[Callable[[ir.Node, Nodes, ir.Value], Site | None], ...] = (
    group_query.site,
    onnx_attention.site,
    concatenated.site,
)


class Rewriting:
    """The graph of `model` while it becomes one of a step. Raises `SourceError` where it cannot."""

    def __init__(self, model: ir.Model):
        common.InlinePass()(model)
        self.model, self.graph = model, model.graph
        self.inputs = {spec.name: graph_input(spec) for spec in STEP}
        self.nodes = Nodes(self.graph)
        self._masks: dict[int | None, ir.Value] = {}
        positions = self.inputs[STEP_POSITIONS.name]
        found = (
            each
            for node in list(self.graph)
            for kind in SITES
            if (each := kind(node, self.nodes, positions)) is not None
        )
        self.sites = list(found)
        if self.sites:  # another graph stays unchanged
            to_newer_opset(self.graph, self.nodes)

    def rewrite(self, windows: Sequence[int | None]) -> list[str]:
        """Rewrite the graph; `windows`: of the sites whose masks the graph applies itself. Returns notes."""
        outputs: list[ir.Value] = []
        caches: list[ir.Value] = []
        for index, (site, window) in enumerate(zip(self.sites, windows, strict=True)):
            past, present = self._attend(site, index, window)
            caches += past
            outputs += present
        logits = next((value for value in self.graph.outputs if value.name == LOGITS), None)
        if logits is None or logits.producer() is None:
            raise SourceError(f"it has no output {LOGITS}")
        logits = self._logits(logits)
        self._replace_inputs(caches)
        self.graph.outputs[:] = [logits, *outputs]
        standard_norms(self.graph, self.nodes)
        notes = keep_nbits(self.model, self.nodes, self.sites[0].dtype)
        common.RemoveUnusedNodesPass()(self.model)
        self._check_inputs()
        self.graph.opset_imports[""] = OPSET
        self.model.ir_version = max(self.model.ir_version or 0, IR_VERSION)
        return notes

    def _attend(self, site: Site, index: int, window: int | None) -> tuple[list[ir.Value], list[ir.Value]]:
        """Let the step's mask and the buffers of a cache take the place of a site. Returns buffers before and after."""
        nodes, dtype = self.nodes, site.dtype
        past: list[ir.Value] = []
        present: list[ir.Value] = []
        with nodes.before(site.node):
            for kind, new, dim in (("key", site.keys, site.key_dim), ("value", site.values, site.value_dim)):
                axes = (BATCH, site.kv_heads, CAPACITY, dim)
                name = f"{kind}_{index}"
                past.append(graph_input(TensorSpec(PAST + name, dtype.numpy().name, axes)))
                start = self.inputs[WRITE_START.name]
                written = nodes.op("TensorScatter", [past[-1], new, start], axis=2, mode="linear")
                written.name, written.shape = PRESENT + name, ir.Shape(axes)
                present.append(written)
            queries = site.queries
            if site.scale != 1:
                factor = nodes.constant(f"scale_{site.scale!r}_{dtype.name}", site.scale, dtype)
                queries = nodes.op("Mul", [queries, factor])
            softcap: dict[str, Any] = {"softcap": site.softcap} if site.softcap else {}
            found = nodes.op("Attention", [queries, *present, self._mask(window)], scale=1.0, **softcap)
            if site.merged:
                merged = nodes.constant(
                    f"shape_merged_{site.heads}_{site.value_dim}", [0, 0, site.heads * site.value_dim]
                )
                found = nodes.op("Reshape", [nodes.op("Transpose", [found], perm=[0, 2, 1, 3]), merged])
        found.shape = site.output.shape
        site.output.replace_all_uses_with(found)
        return past, present

    def _mask(self, window: int | None) -> ir.Value:
        """The mask [batch, 1, tokens, capacity] of a layer. A window is applied here if other layers have another.

        A slot that this step writes is at the position of its token, which is not the slot's number in a branch of
        drafts; every other slot is at its number.
        """
        if window not in self._masks:
            self._masks[window] = self._new_mask(window)
        return self._masks[window]

    def _new_mask(self, window: int | None) -> ir.Value:
        nodes, mask = self.nodes, self.inputs[ATTENTION_MASK.name]
        if window is None:
            return nodes.op("Unsqueeze", [mask, nodes.constant("heads_axis", [1])])
        positions, start = self.inputs[STEP_POSITIONS.name], self.inputs[WRITE_START.name]
        zero, one = nodes.constant("zero", 0), nodes.constant("one", 1)
        last, middle = nodes.constant("last_axis", [-1]), nodes.constant("heads_axis", [1])
        capacity = nodes.op("Squeeze", [nodes.op("Shape", [mask], start=2, end=3)])
        tokens = nodes.op("Shape", [positions], start=1, end=2)
        numbers = nodes.op("Unsqueeze", [nodes.op("Range", [zero, capacity, one]), zero])  # [1, capacity]
        token = nodes.op("Sub", [numbers, nodes.op("Unsqueeze", [start, last])])  # of this step, that a slot is for
        within = nodes.op("Min", [nodes.op("Max", [token, zero]), nodes.op("Sub", [tokens, one])])
        found = nodes.op("GatherElements", [positions, within], axis=1)
        slots = nodes.op("Where", [nodes.op("Equal", [token, within]), found, numbers])
        ages = nodes.op("Sub", [nodes.op("Unsqueeze", [positions, last]), nodes.op("Unsqueeze", [slots, middle])])
        near = nodes.op("Less", [ages, nodes.constant(f"window_{window}", window)])
        return nodes.op("Unsqueeze", [nodes.op("And", [mask, near]), middle])

    def _logits(self, logits: ir.Value) -> ir.Value:
        shape = logits.shape
        if shape is None or len(shape) != 3 or not isinstance(shape[2], int):
            raise SourceError("its logits are not [batch, tokens, vocabulary]")
        if shape[1] == 1:
            raise SourceError("it computes the logits of the last token alone")
        dtype = logits.dtype
        found = gather_wanted(self.graph, logits, self.inputs[LOGIT_INDICES.name], self.nodes)
        if dtype != ir.DataType.FLOAT:
            cast = ir.node("Cast", [found], {"to": ir.DataType.FLOAT})
            producer = found.producer()
            assert producer is not None
            self.graph.insert_after(producer, cast)
            found = cast.outputs[0]
        logits.name = f"{LOGITS}_computed"
        found.name, found.type = LOGITS, ir.TensorType(ir.DataType.FLOAT)
        found.shape = ir.Shape((BATCH, WANTED_TOKENS, int(shape[2])))
        return found

    def _replace_inputs(self, caches: Sequence[ir.Value]) -> None:
        """Let the step's inputs take the place of those with the same meaning."""
        for value in list(self.graph.inputs):
            if value.is_initializer():
                continue
            name = {TOKENS: INPUT_IDS.name, POSITIONS: STEP_POSITIONS.name}.get(str(value.name))
            replacement = self.inputs[name] if name else None
            if str(value.name) in WANTED:
                replacement = self.nodes.constant(
                    "all_logits", WANTED[str(value.name)], value.dtype or ir.DataType.INT64
                )
            if replacement is None or not value.uses():
                continue
            if replacement.dtype != value.dtype:
                cast = ir.node("Cast", [replacement], {"to": value.dtype})
                self.graph.insert_before(self.graph[0], cast)
                replacement = cast.outputs[0]
            value.replace_all_uses_with(replacement)
        self._old = [value for value in self.graph.inputs if not value.is_initializer()]
        self.graph.inputs[:] = [*self.inputs.values(), *caches]

    def _check_inputs(self) -> None:
        """Raise `SourceError` if the graph still depends on an input that no step has."""
        for value in self._old:
            if users := [node for node, _ in value.uses() if node.graph is self.graph]:
                raise SourceError(f"it computes {users[0].op_type} from {value.name} outside of its attention")
