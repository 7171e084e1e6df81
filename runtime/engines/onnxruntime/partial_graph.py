"""The subgraph of an ONNX file that some of its outputs need.

ONNX Runtime computes every output of a session, even those that are not requested: the run option
`only_execute_path_to_fetches` has no effect in its inference builds. So the session must get a smaller graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.bundle.model_file import outline
from intaglio.errors import EngineError
from intaglio.runtime.engines.onnx_nodes import all_nodes

if TYPE_CHECKING:
    import onnx


def partial_graph(path: Path, outputs: Collection[str] | None) -> onnx.ModelProto:
    """The model in `path` reduced to these `outputs`, in the file's order, and the nodes they are computed from.

    Without `outputs` it is the whole model.

    No weight is read: large ones inside the file become external data in it, which ONNX Runtime maps into memory.
    Raises `EngineError` for an output that the file does not have, `BundleError` for a file that cannot be read.
    """
    model = outline(path, located=True)
    if outputs is not None:
        if lacking := sorted(set(outputs).difference(value.name for value in model.graph.output)):
            raise EngineError(f"{path}: has no output {', '.join(lacking)}. Re-export the bundle.")
        reduce(model, outputs)
    return model


def reduce(model: onnx.ModelProto, outputs: Collection[str], given: Collection[str] = ()) -> None:
    """Reduce `model` to the values `outputs`, and to the nodes they are computed from, up to the values `given`.

    Its outputs are then `outputs`, and those of `given` that are needed are inputs.
    """
    graph = model.graph
    nodes, values = needed(graph, outputs, given)
    described = {value.name: value for value in (*graph.value_info, *graph.output)}
    inputs = [value for value in graph.input if value.name in values]
    inputs += [described[name] for name in given if name in values and name not in outputs]
    stated = [value for value in graph.output if value.name in outputs]
    stated += [described[name] for name in outputs if name not in {value.name for value in stated}]
    _keep(graph.node, [node for index, node in enumerate(graph.node) if index in nodes])
    _keep(graph.input, inputs)
    _keep(graph.output, stated)
    fields: tuple[Any, ...] = (graph.initializer, graph.value_info)
    for field in fields:
        _keep(field, [each for each in field if each.name in values])


def needed(graph: onnx.GraphProto, outputs: Collection[str], given: Collection[str] = ()) -> tuple[set[int], set[str]]:
    """The numbers of the nodes that `outputs` are computed from, up to `given`, and the names of the values."""
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    nodes, values = set[int](), set[str]()
    found = list(outputs)
    while found:
        name = found.pop()
        if name not in values:
            values.add(name)
            index = producers.get(name)
            if index is not None and index not in nodes and (name in outputs or name not in given):
                nodes.add(index)
                found += _read(graph.node[index])
    return nodes, values


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, including those read by the graphs in its attributes."""
    for each in all_nodes([node]):
        yield from filter(None, each.input)


def _keep(field: Any, kept: Sequence[Any]) -> None:
    """Reduce a repeated field of a message to `kept`, which are some of its elements."""
    del field[:]  # the kept elements stay alive
    field.extend(kept)
