"""Run a graph on calibration batches in segments, with weights changed between segments.

A pass that rounds the weights of a layer, or corrects its bias, needs the inputs of the layer after those before
were changed. Running the whole graph for each layer would take as many runs as there are layers. Here every node runs
once: values that later nodes need are kept between segments, in files, as the activations of a hundred texts would take
more memory than the model's weights. Only the weights of one segment are loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import cycle
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from intaglio.bundle.model_file import save
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.kept import close_kept
from intaglio.executors.parcel import Keep, Stored
from intaglio.graph_passes.calibration.calibrate import mask_axes
from intaglio.graph_passes.calibration.second_moments import (
    NUMBERS,
    column_parts,
    mirrored,
    products_of,
    second_moments,
)
from intaglio.graph_passes.calibration.stretch import Stretch, Tokens, run_batch
from intaglio.graph_passes.graphs import infer_shapes, used_values
from intaglio.plugins.nodes import lengths
from intaglio.processes.temporary import scratch_directory
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.text.inputs import MASK

Floats = npt.NDArray[np.float32]

PRODUCTS = 2 * NUMBERS  # of the most that a task computes besides running a stretch


def _nothing() -> None:
    """Do nothing meanwhile."""


class Layer(Protocol):
    """Nodes with an activation as an input."""

    @property
    def x(self) -> ir.Value:
        """The activations [..., channels]."""


AnyLayer = TypeVar("AnyLayer", bound=Layer)


class Stream:
    """Batches advancing through a graph. A context manager.

    Values must be requested in the order of the graph.
    Nodes that have run may be replaced, as long as their outputs keep their names; weights of nodes that have not may
    be changed. The values kept between segments take tokens times width of space in the temporary directory: for a
    decoder, the residual stream and one activation.
    """

    def __init__(self, model: ir.Model, batches: Sequence[dict[str, Array]], executor: Executor = INLINE):
        """`executor` runs the batches."""
        infer_shapes(model)
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        self._model, self._executor = model, executor
        self._pending = _depending_on(inputs, model.graph)
        self._position = {node: index for index, node in enumerate(self._pending)}
        self._values: list[dict[str, Array | Stored]] = [dict(batch) for batch in batches]
        self._open = ExitStack()
        self._folder = self._open.enter_context(scratch_directory("values"))
        self._axes = mask_axes(model)
        padded = self._axes is not None
        self._masks = [batch[MASK] != 0 if padded and MASK in batch else None for batch in batches]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def levels(self, layers: Iterable[AnyLayer]) -> list[list[AnyLayer]]:
        """Group the layers by input, in the order in which the inputs become known."""
        levels: dict[ir.Value, list[AnyLayer]] = {}
        for layer in layers:
            levels.setdefault(layer.x, []).append(layer)
        return [levels[value] for value in sorted(levels, key=self._place)]

    def has_run(self, node: ir.Node) -> bool:
        """Whether `node` has run, so that it may be replaced."""
        return node not in self._pending

    def _place(self, value: ir.Value) -> int:
        producer = value.producer()
        return -1 if producer is None else self._position[producer]

    def advance(self, value: ir.Value) -> None:
        """Run until `value` is known."""
        if not self._is_known(value):
            for _ in self._run(value):
                pass

    def _is_known(self, value: ir.Value) -> bool:
        return value.producer() not in self._pending

    def rows(self, value: ir.Value) -> Iterator[Floats]:
        """Run until `value` [..., channels] is known, and yield it for each batch: [tokens, channels].

        Padding is removed if there is an `attention_mask` of two axes. Raises `GraphError` for a NaN or infinite
        activation.
        """
        self.advance(value)
        for batch in range(len(self._values)):
            yield self._tokens(value, batch).of(self._array(batch, str(value.name)))

    def _array(self, batch: int, name: str) -> Array:
        value = self._values[batch][name]
        return value if isinstance(value, np.ndarray) else value.open()

    def _tokens(self, value: ir.Value, batch: int) -> Tokens:
        return Tokens(str(value.name), self._masks[batch], self._axes, lengths(value))

    def second_moments(self, value: ir.Value, channels: int, meanwhile: Callable[[], None] = _nothing) -> Floats:
        """Run until `value` [..., channels] is known, and return Σ xᵀ·x over its rows: [channels, channels].

        `meanwhile` is called once, when workers have their first tasks.
        """
        if self._executor is INLINE:
            self.advance(value)
            meanwhile()
            return second_moments(self.rows(value), channels)  # the products are added where they are computed
        sums = np.zeros((channels, channels), np.float32)
        parts = column_parts(channels)
        for part, products in zip(cycle(parts), self._products(value, channels, meanwhile), strict=False):
            sums[part, part.start :] += products
        return mirrored(sums)

    def _products(self, value: ir.Value, channels: int, meanwhile: Callable[[], None]) -> Iterator[Floats]:
        """Yield the products of each of `column_parts`, batch after batch.

        The worker that runs a batch multiplies its rows, too, so that they need not be sent. A wide layer's products
        would not fit into its memory together, so that each part is a task.
        """
        parts = column_parts(channels)
        if self._is_known(value) or channels * channels > PRODUCTS:
            tasks = ((rows[:, part.start :], part.stop - part.start) for rows in self.rows(value) for part in parts)
            found = self._executor.map(products_of, tasks)
            meanwhile()
            yield from found
        else:
            for products in self._run(value, parts, meanwhile):
                yield from products

    def _run(
        self, wanted: ir.Value, parts: Sequence[slice] = (), meanwhile: Callable[[], None] = _nothing
    ) -> Iterator[list[Floats]]:
        """Run the nodes up to `wanted` on every batch; keep it, and the values that later nodes need.

        Yield the products of `parts` of the columns of `wanted`, for each batch. `meanwhile`: as of `second_moments`.
        """
        producer = wanted.producer()
        assert producer is not None
        count = self._pending.index(producer) + 1
        nodes, self._pending = self._pending[:count], self._pending[count:]
        needed = {value for node in self._pending for value in used_values(node)} | {wanted}
        used = {value for node in nodes for value in used_values(node)}
        made = {value for node in nodes for value in node.outputs}
        outputs = sorted((value for value in made if value in needed), key=lambda value: str(value.name))
        inputs = [value for value in used - made if str(value.name) in self._values[0] and not value.is_initializer()]
        names = [str(value.name) for value in inputs]
        made_names = [str(value.name) for value in outputs]
        needed_names = {str(value.name) for value in needed}
        with scratch_directory("stream") as directory:
            save(self._stretch(inputs, nodes, outputs), directory / "model.onnx", external_above=0)
            stretch = self._executor.share(Stretch(directory))
            tasks = (
                (stretch, made_names, self._tokens(wanted, batch), parts, names, *(values[name] for name in names))
                for batch, values in enumerate(self._values)
            )
            try:
                found = self._executor.map(run_batch, tasks, keep=Keep(len(outputs), self._folder))
                meanwhile()
                for values, (*kept, products) in zip(self._values, found, strict=True):
                    values.update(zip(made_names, kept, strict=True))
                    for name in values.keys() - needed_names:
                        del values[name]
                    yield products
            finally:
                close_kept()

    def _stretch(self, inputs: Sequence[ir.Value], nodes: list[ir.Node], outputs: Sequence[ir.Value]) -> ir.Model:
        """Build a model of `nodes`, with the nodes they need that do not depend on inputs of the graph."""
        fixed: dict[ir.Node, None] = {}
        weights: dict[str, ir.Value] = {}
        pending = [value for node in nodes for value in used_values(node) if value not in set(inputs)]
        while pending:
            value = pending.pop()
            producer = value.producer()
            if value.is_initializer():
                weights[str(value.name)] = value
            elif producer is not None and producer not in self._position and producer not in fixed:
                fixed[producer] = None
                pending.extend(used_values(producer))
        ordered = [node for node in self._model.graph if node in fixed]
        graph = self._model.graph
        view = ir.GraphView(
            inputs, outputs, nodes=[*ordered, *nodes], initializers=tuple(weights.values()), name="stretch",
            opset_imports=graph.opset_imports,
        )  # fmt: skip
        clone = view.clone()
        for value in clone.inputs:  # the batch defines the lengths; names of axes could be inconsistent
            value.shape = ir.Shape([None] * self._array(0, str(value.name)).ndim)
        functions = list(self._model.functions.values())
        return ir.Model(clone, ir_version=self._model.ir_version, functions=functions)


def _depending_on(inputs: Sequence[ir.Value], graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of the graph whose outputs depend on `inputs`, in order."""
    depending = set(inputs)
    nodes = []
    for node in graph:
        if not depending.isdisjoint(used_values(node)):
            depending.update(node.outputs)
            nodes.append(node)
    return nodes
