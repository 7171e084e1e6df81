"""The files of an ONNX model beside it: where its external data lies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from intaglio.errors import BundleError

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

IN_MEMORY = "*/_ORT_"  # begins the locations by which ONNX Runtime refers to memory of its own process
TENSORLESS = ("TypeProto", "ValueInfoProto", "StringStringEntryProto", "OperatorSetIdProto", "TensorAnnotation")


def external_data_files(model: onnx.ModelProto) -> list[str]:
    """The distinct locations of external data in a parsed ONNX file, in order of appearance.

    Raises `BundleError` for a location that ONNX Runtime reads as an address in memory.
    """
    from onnx.external_data_helper import uses_external_data

    locations: dict[str, None] = {}
    for tensor in _tensors(model):
        if uses_external_data(tensor):
            locations.update((entry.value, None) for entry in tensor.external_data if entry.key == "location")
    for location in locations:
        if location.startswith(IN_MEMORY):
            raise BundleError(
                f"external data at {location[:60]!r}: an address in memory, expected a file. Do not use this model; "
                "re-export it from a source that you trust."
            )
    return list(locations)


def _tensors(message: Message) -> Iterator[onnx.TensorProto]:
    """Every tensor anywhere in a message: of sparse tensors, subgraphs and functions too."""
    import onnx

    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.name in TENSORLESS:
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            if isinstance(inner, onnx.TensorProto):
                yield inner
            else:
                yield from _tensors(inner)
