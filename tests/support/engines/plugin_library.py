"""TensorRT's side of our library of plugins, without TensorRT: through the library's own interfaces in C++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from intaglio.plugins import ort

ROOT = Path(__file__).parents[3]
BUILD, RUNTIME = 0, 1  # phases
CHAR, INT8, UNKNOWN = 6, 3, 8  # types of fields
TYPES = {"float32": 0, "float16": 1, "int8": 2, "int32": 3}  # TensorRT's numbers
Fields = Mapping[str, bytes]
FLAGS = ("-std=c++17", "-O0", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-I.")


class _Field(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (("rank", ctypes.c_int32), ("lengths", ctypes.c_int64 * 8), ("type", ctypes.c_int32))


def fields_of(node: ir.Node) -> dict[str, bytes]:
    """The fields that TensorRT's parser makes of a node's attributes: texts end with a zero."""
    found = {}
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.TENSOR:
            found[name] = attribute.as_tensor().numpy().tobytes()
        else:
            found[name] = attribute.as_string().encode() + b"\0"
    return found


def as_given(array: np.ndarray) -> np.ndarray:
    """An input of an operator as its plugin gets it."""
    return array.view(np.int8) if array.dtype in (np.uint8, np.bool_) else array


class Plugin:
    """A plugin of the library; destroyed when it is collected."""

    def __init__(self, calls: ctypes.CDLL, address: int) -> None:
        self.calls, self.address = calls, address

    def __del__(self) -> None:
        self.calls.destroy(self.address)

    def clone(self) -> Plugin:
        return Plugin(self.calls, self.calls.clone(self.address))

    def attach(self) -> Plugin | None:
        """Its clone in a context of an engine; None where it refuses."""
        address = self.calls.attach(self.address)
        return Plugin(self.calls, address) if address else None

    def serialised(self) -> dict[str, bytes]:
        fields = ctypes.POINTER(_Field)()
        count = self.calls.serialised(self.address, ctypes.byref(fields))
        return {field.name.decode(): ctypes.string_at(field.data, field.length) for field in fields[:count]}

    def tactics(self) -> list[int]:
        found = (ctypes.c_int32 * 16)()
        return list(found[: self.calls.tactics(self.address, found)])

    def set_tactic(self, tactic: int) -> bool:
        """Whether the plugin takes it."""
        return self.calls.set_tactic(self.address, tactic) == 0

    def timing_key(self) -> bytes:
        return bytes(self.calls.timing_key(self.address))

    def describe(self, inputs: Sequence[np.ndarray]) -> list[tuple[tuple[int, ...], str]] | int:
        """Shapes and dtypes of the outputs, or a negative number where it refuses."""
        outputs = (_Tensor * 8)()
        count = self.calls.describe(self.address, _tensors(inputs), len(inputs), outputs)
        if count < 0:
            return int(count)
        names = {number: name for name, number in TYPES.items()}
        return [(tuple(each.lengths[: each.rank]), names[each.type]) for each in outputs[:count]]

    def run(self, inputs: Sequence[np.ndarray], announced: bool = True) -> list[np.ndarray] | None:
        """The outputs, None where it fails. Shapes are announced before, as TensorRT does."""
        described = self.describe(inputs)
        assert isinstance(described, list)
        outputs = [np.zeros(shape, dtype) for shape, dtype in described]
        given = [np.ascontiguousarray(array) for array in inputs]
        failed = self.calls.enqueue(
            self.address, announced, _tensors(given), len(given), _pointers(given), _tensors(outputs), len(outputs),
            _pointers(outputs),
        )  # fmt: skip
        return None if failed else outputs


class PluginLibrary:
    """The library, with TensorRT's log."""

    def __init__(self, asks: bool = True) -> None:
        """`asks`: for the errors, which are not in the log then."""
        self.asks = asks
        path = ort.library()
        if path is None:
            pytest.skip("no compiled kernels")
        self.calls = _calls()
        self.creator = self.calls.creator_of(str(path).encode())
        assert self.creator, "no creator of plugins"

    def logged(self) -> str:
        """The messages since the last call: in TensorRT's log, or kept, if something in this process has asked."""
        kept = "".join(f"intaglio: {line}\n" for line in ort.plugin_errors()) if self.asks else ""
        return bytes(self.calls.logged()).decode() + kept

    def take_logger(self) -> None:
        """Let the library have no log of TensorRT."""
        self.calls.take_logger(str(ort.library()).encode())

    def field_names(self) -> list[str]:
        fields = ctypes.POINTER(_Field)()
        count = self.calls.field_names(self.creator, ctypes.byref(fields))
        return [field.name.decode() for field in fields[:count]]

    def create(self, fields: Fields, phase: int = BUILD) -> Plugin | None:
        """A plugin from fields; None where the library refuses them."""
        contents = {
            name: ctypes.create_string_buffer(content, max(len(content), 1)) for name, content in fields.items()
        }
        array = (_Field * len(fields))(
            *(
                _Field(name.encode(), ctypes.cast(contents[name], ctypes.c_void_p), CHAR, len(content))
                for name, content in fields.items()
            )
        )
        address = self.calls.create(self.creator, array, len(fields), phase)
        if not address:
            return None
        assert self.calls.name_matches(self.creator, address)
        return Plugin(self.calls, address)


def _tensors(arrays: Sequence[np.ndarray]) -> Any:
    return (_Tensor * len(arrays))(
        *(_Tensor(array.ndim, (ctypes.c_int64 * 8)(*array.shape), TYPES.get(array.dtype.name, 99)) for array in arrays)
    )


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


@cache
def _calls() -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    with TemporaryDirectory() as folder:
        path = Path(folder, "plugin_calls.so")
        source = Path(__file__).with_name("plugin_calls.cpp")
        command = [compiler, *FLAGS, "-o", str(path)]
        subprocess.run([*command, str(source)], check=True, cwd=ROOT)
        calls = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("creator_of", pointer, [ctypes.c_char_p]),
        ("logged", ctypes.c_char_p, []),
        ("take_logger", None, [ctypes.c_char_p]),
        ("name_matches", number, [pointer, pointer]),
        ("field_names", number, [pointer, pointer]),
        ("create", pointer, [pointer, pointer, number, number]),
        ("attach", pointer, [pointer]),
        ("clone", pointer, [pointer]),
        ("destroy", None, [pointer]),
        ("serialised", number, [pointer, pointer]),
        ("tactics", number, [pointer, pointer]),
        ("set_tactic", number, [pointer, number]),
        ("timing_key", ctypes.c_char_p, [pointer]),
        ("describe", number, [pointer, pointer, number, pointer]),
        ("enqueue", number, [pointer, number, pointer, number, pointer, pointer, number, pointer]),
    ):
        function = getattr(calls, name)
        function.restype, function.argtypes = result, arguments
    return calls
