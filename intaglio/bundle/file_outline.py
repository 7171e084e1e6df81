"""Read an ONNX file without the weights inside it.

A protobuf message is a sequence of fields, each a key, a length and the content. The large `raw_data` of the graph's
initializers are skipped; the rest is parsed as usual. An ONNX file holds up to 1 GiB of weights inline (see
model_file.py), but reading them takes twice that memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    import onnx

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class Field(NamedTuple):
    """A field of a message: its number and wire type, its start, and the range of its content in the file."""

    number: int
    wire: int
    start: int
    content: int
    end: int


def parse_without_weights(path: Path, above: int, located: bool) -> onnx.ModelProto:
    """The message in `path`; initializers of more than `above` bytes have no data.

    `located`: they refer to external data in `path` itself. Raises `ValueError` if it is not a protobuf message.
    """
    import onnx

    model, graph = onnx.ModelProto.DESCRIPTOR, onnx.GraphProto.DESCRIPTOR
    graph_number = model.fields_by_name["graph"].number
    initializer_number = graph.fields_by_name["initializer"].number
    parsed = onnx.ModelProto()
    with path.open("rb") as file:
        for field in _fields(file, 0, path.stat().st_size):
            if (field.number, field.wire) != (graph_number, DELIMITED):
                parsed.MergeFromString(_bytes(file, field.start, field.end))
                continue
            parsed.graph.SetInParent()
            for part in _fields(file, field.content, field.end):
                if (part.number, part.wire) == (initializer_number, DELIMITED) and part.end - part.content > above:
                    tensor, place = _initializer(file, part, above)
                    if located and place is not None:
                        _locate(tensor, path.name, place)
                    parsed.graph.initializer.append(tensor)
                else:
                    parsed.graph.MergeFromString(_bytes(file, part.start, part.end))
    return parsed


def _initializer(file: BinaryIO, tensor: Field, above: int) -> tuple[onnx.TensorProto, Field | None]:
    """A tensor without large `raw_data`, and the location of that data."""
    import onnx

    made, place = onnx.TensorProto(), None
    raw_number = onnx.TensorProto.DESCRIPTOR.fields_by_name["raw_data"].number
    for field in _fields(file, tensor.content, tensor.end):
        if field.number == raw_number and field.end - field.content > above:
            place = field
        else:
            made.MergeFromString(_bytes(file, field.start, field.end))
    return made, place


def _locate(tensor: onnx.TensorProto, location: str, place: Field) -> None:
    import onnx

    tensor.data_location = onnx.TensorProto.EXTERNAL
    places = {"location": location, "offset": place.content, "length": place.end - place.content}
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))


def _fields(file: BinaryIO, start: int, end: int) -> Iterator[Field]:
    """The fields of the message from `start` to `end`."""
    while start < end:
        file.seek(start)
        key = _varint(file)
        wire = key & 7
        if wire == VARINT:
            content = file.tell()
            _varint(file)
            stop = file.tell()
        elif wire in (FIXED64, FIXED32):
            content = file.tell()
            stop = content + (8 if wire == FIXED64 else 4)
        elif wire == DELIMITED:
            length = _varint(file)
            content = file.tell()
            stop = content + length
        else:
            raise ValueError(f"protobuf wire type {wire} at byte {start}")
        if stop > end:
            raise ValueError(f"a field of {stop - content} bytes at byte {start}, beyond the end of its message")
        yield Field(key >> 3, wire, start, content, stop)
        start = stop


def _varint(file: BinaryIO) -> int:
    """Protobuf's integer: seven bits a byte, lowest first, the top bit set on all but the last."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("the message ends in the middle of a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    raise ValueError("an integer of more than ten bytes")


def _bytes(file: BinaryIO, start: int, end: int) -> bytes:
    file.seek(start)
    return file.read(end - start)
