"""The subgraph of an ONNX file that some of its outputs need.

ONNX Runtime computes every output of a session, even those that are not requested: the run option
`only_execute_path_to_fetches` has no effect in its inference builds. So the session must get a smaller graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.errors import EngineError
from intaglio.model_file import outline

if TYPE_CHECKING:
    import onnx


def partial_graph(path: Path, outputs: Collection[str]) -> onnx.ModelProto:
    """The model in `path` reduced to these `outputs`, in the file's order, and the nodes they are computed from.

    Weights inside the file are read if they are needed; external data stays in its file next to `path`. Raises
    `EngineError` for an output that the file does not have, `BundleError` for a file that cannot be read.
    """
    model = outline(path, located=True)
    graph = model.graph
    wanted = [value for value in graph.output if value.name in outputs]
    if lacking := sorted(set(outputs).difference(value.name for value in wanted)):
        raise EngineError(f"{path}: has no output {', '.join(lacking)}. Re-export the bundle.")
    producers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needed, values = set[int](), set[str]()
    found = [value.name for value in wanted]
    while found:
        name = found.pop()
        if name not in values:
            values.add(name)
            index = producers.get(name)
            if index is not None and index not in needed:
                needed.add(index)
                found += _read(graph.node[index])
    _keep(graph.node, [node for index, node in enumerate(graph.node) if index in needed])
    _keep(graph.output, wanted)
    fields: tuple[Any, ...] = (graph.input, graph.initializer, graph.value_info)
    for field in fields:
        _keep(field, [each for each in field if each.name in values])
    with path.open("rb") as file:
        for tensor in graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place.get("location") == path.name:
                file.seek(int(place["offset"]))
                tensor.raw_data = file.read(int(place["length"]))
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
    return model


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The values that a node reads, including those read by the graphs in its attributes."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)


def _keep(field: Any, kept: Sequence[Any]) -> None:
    """Reduce a repeated field of a message to `kept`, which are some of its elements."""
    del field[:]  # the kept elements stay alive
    field.extend(kept)
