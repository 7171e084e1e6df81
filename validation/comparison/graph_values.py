"""Expose values inside an ONNX graph as additional outputs, without reading or rewriting its weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from intaglio.bundle.external_data import external_data_files, link_data
from intaglio.bundle.model_file import parse
from intaglio.errors import UsageError, storage_errors
from intaglio.files.hashes import copy_file
from intaglio.processes.temporary import scratch_directory


def graph_values(path: Path) -> list[str]:
    """The names of all node outputs in the file's main graph, in topological order."""
    return [name for node in parse(path).graph.node for name in node.output if name]


@contextmanager
def expose_values(path: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield the path of a temporary copy of the model in which the values `names` are outputs too.

    Protobuf merges concatenated messages: so the copy is the file's bytes followed by a small message with only the
    additional outputs. External data is linked, or copied if the file system cannot link. Raises `UsageError` for a
    value that the graph does not have.
    """
    import onnx

    graph = parse(path).graph
    known = {name for node in graph.node for name in node.output}
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"{path}: the graph has no value {unknown[0]!r}. Name the output of one of its nodes.")
    outputs = {value.name for value in graph.output}
    addition = onnx.ModelProto()
    addition.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in outputs)
    with scratch_directory("exposed") as temporary:
        copy = temporary / path.name
        copy_file(path, copy)
        with storage_errors(copy), copy.open("ab") as file:
            file.write(addition.SerializeToString())
        link_data(path, external_data_files(parse(path)), temporary)
        yield copy
