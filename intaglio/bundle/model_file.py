"""Read and write ONNX files without holding the weights twice.

`onnx.save` copies every weight into a protobuf message and that message into a byte string. Here the message is
built without the large weights, and they are streamed into the file one at a time: the peak memory is the size of the
largest single tensor. Above 1 GiB the weights go to `<name>.data` next to the file, as external data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from intaglio.bundle.external_data import beside_model, file_name, find_linked_data
from intaglio.bundle.file_outline import parse_without_weights
from intaglio.errors import BundleError, one_line, storage_errors

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

EXTERNAL_ABOVE = 1 << 30  # bytes of weights; a protobuf message cannot exceed 2 GiB
STREAMED_ABOVE = 4096  # bytes of one tensor; smaller ones stay in the message
TYPED_DATA = (
    "float_data",
    "int32_data",
    "string_data",
    "int64_data",
    "double_data",
    "uint64_data",
)  # all fields but raw_data
ALIGNMENT = 4096  # of external tensors in their file: a page, so that they can be mapped into memory

# what onnx_ir logs of a damaged graph is in our own message; without a handler it would go to standard error
logging.getLogger("onnx_ir").addHandler(logging.NullHandler())


def parse(path: Path) -> onnx.ModelProto:
    """Parse an ONNX file to its protobuf message, without loading external data. Raises `BundleError`."""
    import onnx

    return _checked(path, lambda: onnx.load_model(str(path), load_external_data=False))


def outline(path: Path, located: bool = False) -> onnx.ModelProto:
    """`parse` without reading the large weights inside the file itself. Raises `BundleError`.

    `located`: they become external data that refers to that same file; otherwise they have no data.
    """
    return _checked(path, lambda: parse_without_weights(path, STREAMED_ABOVE, located))


def _checked(path: Path, read: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    from google.protobuf.message import DecodeError

    try:
        model = read()
    except (DecodeError, ValueError, OSError) as error:
        raise BundleError(f"{path}: not a readable ONNX file ({error}). Re-create it.") from error
    if not model.HasField("graph"):
        raise BundleError(f"{path}: an ONNX file without a graph. Re-create it.")
    return model


def load(path: Path, mapped: bool = False, message: onnx.ModelProto | None = None) -> ir.Model:
    """Read an ONNX file; external weights are mapped into memory on first use. Raises `BundleError`.

    With `mapped`, the weights inside the ONNX file are mapped too; the file must then not be written to.
    `message`: what `parse` returned of the file, possibly changed since.
    """
    import onnx_ir as ir

    message = message or (outline(path, located=True) if mapped else parse(path))
    linked = find_linked_data(message, path)
    try:
        model = ir.serde.deserialize_model(message)
        if not linked:
            ir.external_data.set_base_dir(model.graph, path.parent)
        for tensor in constants(model):
            _check_data(tensor)
    except Exception as error:  # an inconsistent message can raise anything
        raise BundleError(f"{path}: not a readable ONNX file ({one_line(error, 200)}). Re-export it.") from error
    return model


def _check_data(tensor: ir.TensorProtocol) -> None:
    """Raise `ValueError` if a tensor's data does not fit its dtype and shape; large data is not read."""
    import onnx_ir as ir

    if any(length < 0 for length in tensor.shape.numpy()):
        raise ValueError(f"{tensor.name} has the shape {list(tensor.shape.numpy())}")
    if isinstance(tensor, ir.ExternalTensor):
        held = max(Path(tensor.path).stat().st_size - (tensor.offset or 0), 0)
        held = held if tensor.length is None else min(held, tensor.length)
        if (tensor.offset or 0) < 0 or held < tensor.nbytes:
            raise ValueError(f"{tensor.name} needs {tensor.nbytes} bytes, {tensor.path} has {held} for it")
    elif isinstance(tensor, ir.TensorProtoTensor):
        if tensor.raw.HasField("raw_data"):
            held = len(tensor.raw.raw_data)
            if held != tensor.nbytes:
                raise ValueError(f"{tensor.name} needs {tensor.nbytes} bytes, it has {held}")
        elif tensor.size > 0 and not any(len(getattr(tensor.raw, name)) for name in TYPED_DATA):
            raise ValueError(f"{tensor.name} has no data")
        else:
            tensor.numpy()


def constants(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor that the model's main graph stores: initializers, and those of Constant nodes."""
    for value in model.graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and "value" in node.attributes:
            yield node.attributes["value"].as_tensor()


def count_weights(model: ir.Model) -> int:
    """The number of elements in the model's weights: all constants except single numbers, shapes, indices and masks."""
    return sum(
        tensor.size
        for tensor in constants(model)
        if len(tensor.shape)
        and (tensor.dtype.is_floating_point() or (tensor.dtype.is_integer() and tensor.dtype.bitwidth <= 8))
    )


def save(
    model: ir.Model,
    path: Path,
    external_above: int = EXTERNAL_ABOVE,
    consume: bool = False,
    beside: Container[str] = (),
) -> None:
    """Write `model` to `path`, and to `path` + ".data" when its weights exceed `external_above` bytes.

    Weights stored in one of the files `beside`, which the folder of `path` also has, are only referred to.
    With `consume`, each weight is released once it is written, so that a checkpoint that is mapped into memory is
    never completely resident; the model is invalid afterwards.
    """
    import onnx_ir as ir

    initializers = model.graph.initializers
    weights = {
        name: value.const_value
        for name, value in initializers.items()
        if value.const_value is not None
        and (value.const_value.nbytes > STREAMED_ABOVE or isinstance(value.const_value, ir.ExternalTensor))
    }
    for name in [name for name, tensor in weights.items() if file_name(tensor) in beside]:
        initializers[name].const_value = beside_model(weights.pop(name), path.parent)
    streamed = {name: tensor.nbytes for name, tensor in weights.items()}
    with without_data(model, weights):
        proto = ir.serde.serialize_model(model)
    messages = _take_out(proto, streamed)

    def next_weight(name: str) -> ir.TensorProtocol:
        tensor = weights.pop(name)
        if consume:
            initializers[name].const_value = None
        return tensor

    with storage_errors(path):
        if sum(streamed.values()) > external_above:
            data = path.with_name(path.name + ".data")
            with data.open("wb") as file:
                for name in streamed:
                    _write_external(file, data.name, messages[name], next_weight(name))
            proto.graph.initializer.extend(messages[name] for name in streamed)
            path.write_bytes(proto.SerializeToString())
        else:
            with path.open("wb") as file:
                _write_inline(file, proto, [(messages[name], size) for name, size in streamed.items()], next_weight)


def share(models: Sequence[ir.Model], path: Path) -> None:
    """Write the large weights that all of `models` have under the same name to `path`, once.

    The models then refer to that file, and so do ONNX files in its folder that are saved with `beside`.
    """
    import onnx_ir as ir

    first, *others = (model.graph.initializers for model in models)
    large = [name for name, value in first.items() if value.const_value and value.const_value.nbytes > STREAMED_ABOVE]
    common = [name for name in large if all(name in initializers for initializers in others)]
    if not common:
        return
    with storage_errors(path), path.open("wb") as file:
        for name in common:
            tensor = first[name].const_value
            assert tensor is not None
            offset = append(file, tensor)
            shape = ir.Shape([int(str(length)) for length in tensor.shape])
            for initializers in (first, *others):
                initializers[name].const_value = ir.ExternalTensor(
                    path.name, offset, tensor.nbytes, tensor.dtype, shape=shape, name=name, base_dir=path.parent
                )


@contextmanager
def without_data(model: ir.Model, weights: Mapping[str, ir.TensorProtocol]) -> Iterator[None]:
    """Detach the data of the initializers named in `weights` while the block runs."""
    import onnx_ir as ir

    for name, tensor in weights.items():
        shape = ir.Shape([int(str(length)) for length in tensor.shape])
        elsewhere = ir.ExternalTensor("-", 0, tensor.nbytes, tensor.dtype, name=name, shape=shape)
        model.graph.initializers[name].const_value = elsewhere
    try:
        yield
    finally:
        for name, tensor in weights.items():
            model.graph.initializers[name].const_value = tensor


def _take_out(proto: onnx.ModelProto, names: Container[str]) -> dict[str, onnx.TensorProto]:
    """Remove the named initializers from `proto`; return them as messages with a name, a type and no data."""
    tensors = list(proto.graph.initializer)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(tensor for tensor in tensors if tensor.name not in names)
    taken = {tensor.name: tensor for tensor in tensors if tensor.name in names}
    for tensor in taken.values():
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    return taken


def _write_external(file: BinaryIO, location: str, message: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Append one weight, aligned, and record its location in its message."""
    import onnx

    offset = append(file, tensor)
    message.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", file.tell() - offset)):
        message.external_data.add(key=key, value=str(value))


def append(file: BinaryIO, tensor: ir.TensorProtocol) -> int:
    """Append a tensor's data to `file`, aligned as in the data of a model; return its offset."""
    file.write(bytes(-file.tell() % ALIGNMENT))
    offset = file.tell()
    _write_data(file, tensor)
    return offset


def _write_inline(
    file: BinaryIO,
    proto: onnx.ModelProto,
    tensors: list[tuple[onnx.TensorProto, int]],
    next_weight: Callable[[str], ir.TensorProtocol],
) -> None:
    """Write `proto` with `tensors` (message without data, bytes of data) as additional initializers of its graph.

    A protobuf message is a sequence of fields in any order, each a key, a length and the content; so the lengths can
    be written before the content is available.
    """
    import onnx

    graph = proto.graph.SerializeToString()
    proto.ClearField("graph")
    heads = []
    for message, size in tensors:
        content = message.SerializeToString() + _field(onnx.TensorProto, "raw_data", size)
        heads.append(_field(onnx.GraphProto, "initializer", len(content) + size) + content)
    total = len(graph) + sum(len(head) + size for head, (_, size) in zip(heads, tensors, strict=True))
    file.write(proto.SerializeToString())
    file.write(_field(onnx.ModelProto, "graph", total))
    file.write(graph)
    for head, (message, _) in zip(heads, tensors, strict=True):
        file.write(head)
        _write_data(file, next_weight(message.name))


def _field(message: type, name: str, length: int) -> bytes:
    """The key and length that open the length-delimited protobuf field `name`."""
    number = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    return _varint(number << 3 | 2) + _varint(length)  # 2: the wire type "length-delimited"


def _varint(value: int) -> bytes:
    """Protobuf's integer: seven bits a byte, lowest first, the top bit set on all but the last."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _write_data(file: BinaryIO, tensor: ir.TensorProtocol) -> None:
    """Write a tensor's raw little-endian data; the system copies data that is already in a file."""
    to_file = getattr(tensor, "tofile", None)  # every tensor class of onnx_ir has it, but not the protocol
    if to_file is not None:
        to_file(file)
    else:
        file.write(tensor.tobytes())
