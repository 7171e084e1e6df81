"""The files of an ONNX model beside it: where its external data lies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.errors import BundleError, storage_errors
from intaglio.files.hashes import inside

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    from google.protobuf.message import Message

IN_MEMORY = "*/_ORT_"  # begins the locations by which ONNX Runtime refers to memory of its own process
TENSORLESS = ("TypeProto", "ValueInfoProto", "StringStringEntryProto", "OperatorSetIdProto", "TensorAnnotation")


def external_data_files(model: onnx.ModelProto) -> list[str]:
    """The distinct locations of external data in a parsed ONNX file, in order of appearance.

    Raises `BundleError` for a location that ONNX Runtime reads as an address in memory.
    """
    locations = list(dict.fromkeys(entry.value for entry in _locations(model)))
    for location in locations:
        if location.startswith(IN_MEMORY):
            raise BundleError(
                f"external data at {location[:60]!r}: an address in memory, expected a file. Do not use this model; "
                "re-export it from a source that you trust."
            )
    return locations


def find_linked_data(model: onnx.ModelProto, path: Path) -> bool:
    """Whether external data of the model, which was read from `path`, is behind links; locations then become absolute.

    onnx_ir follows no link in a folder that it is given, neither symbolic nor hard. Raises `BundleError` for a location
    that leaves the folder.
    """
    if not linked_data(path, external_data_files(model)):
        return False
    for entry in _locations(model):
        entry.value = str(inside(path.parent, entry.value, f"{path}: external data").absolute())
    return True


def file_name(tensor: ir.TensorProtocol) -> str:
    """The name of the file that an external tensor is in; "" for another tensor."""
    return Path(getattr(tensor, "location", "")).name


def beside_model(tensor: Any, folder: Path) -> ir.ExternalTensor:
    """An external tensor in the file of the same name in `folder`."""
    import onnx_ir as ir

    place = (file_name(tensor), tensor.offset, tensor.length, tensor.dtype)
    return ir.ExternalTensor(*place, shape=tensor.shape, name=tensor.name, base_dir=folder)


def read_data(model: onnx.ModelProto, path: Path) -> None:
    """Read the external data of the model, which was parsed from `path`, into its message. Raises `BundleError`."""
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    for tensor in filter(uses_external_data, _tensors(model)):
        place = ExternalDataInfo(tensor)
        with inside(path.parent, place.location, f"{path}: external data").open("rb") as file:
            file.seek(place.offset or 0)
            tensor.raw_data = file.read(-1 if place.length is None else place.length)
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _locations(model: onnx.ModelProto) -> Iterator[onnx.StringStringEntryProto]:
    from onnx.external_data_helper import uses_external_data

    for tensor in _tensors(model):
        if uses_external_data(tensor):
            yield from (entry for entry in tensor.external_data if entry.key == "location")


def linked_data(path: Path, locations: Sequence[str]) -> bool:
    """Whether a file of the external data of the model at `path` is a link, symbolic or hard."""
    files = [path.parent / location for location in locations]
    return symbolic_data(path, locations) or any(file.exists() and file.stat().st_nlink > 1 for file in files)


def symbolic_data(path: Path, locations: Sequence[str]) -> bool:
    """Whether a file of the external data of the model at `path` is behind a symbolic link."""
    real = path.parent.resolve()
    return any((path.parent / location).resolve() != real / location for location in locations)


def link_data(path: Path, locations: Sequence[str], folder: Path) -> None:
    """Put the external data of the model at `path` into `folder`, so that a copy of the model there finds it.

    The files are hard links, as ONNX Runtime does not follow symbolic ones out of the model's folder, or else copies.
    """
    for location in locations:
        source, target = inside(path.parent, location, f"{path}: external data").resolve(), folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            with storage_errors(target):
                shutil.copyfile(source, target)


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
