"""Launches are made of operations that TensorRT's symbols have, and come out as they do for numbers."""

import dataclasses

import numpy as np
import pytest
from kernel_cases import folder_of, launch_of
from operator_cases import MAKERS, Case

from intaglio.errors import EngineError
from intaglio.plugins import OPS
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.geometry import Launch, Tensor, launch


class Symbol:
    """An integer with what `tensorrt.plugin.ShapeExpr` has: four operations, an int only on the right."""

    __hash__ = None

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value + number(other))

    def __sub__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value - number(other))

    def __mul__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value * number(other))

    def __floordiv__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value // number(other))

    def __eq__(self, other: object) -> bool:
        raise TypeError("a symbol is compared")

    def __bool__(self) -> bool:
        raise TypeError("a symbol is asked for its value")


def number(value):
    return value.value if isinstance(value, Symbol) else value


def symbolic(case: Case) -> Launch:
    """The launch when every length of the activations is a symbol that may be one."""
    constant = {"weight", "bias", "shift", "out_shift", "sum_shift"}
    tensors = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        if array is None:
            tensors.append(None)
            continue
        # A length of 1 is known where it broadcasts, and so is the width of a head.
        width = array.ndim - 1 if case.operator == "IntAttention" else None
        lengths = [
            length
            if spec.name in constant or spec.name.endswith("multiplier") or length == 1 or axis == width
            else Symbol(length)
            for axis, length in enumerate(array.shape)
        ]
        tensors.append(Tensor(lengths, array.dtype.name))
    return launch(folder_of(case.operator), tensors, OPS[case.operator].complete(case.attributes))


@pytest.mark.parametrize("operator", MAKERS)
def test_symbols_come_out_as_numbers_do(operator):
    random = np.random.default_rng(0)
    for _ in range(30):
        case = MAKERS[operator](random)
        made, expected = symbolic(case), launch_of(case)
        numbers = {name: tuple(map(number, getattr(made, name))) for name in ("grid", "block", "scalars")}
        assert dataclasses.replace(made, shared_bytes=number(made.shared_bytes), **numbers) == expected


def test_a_machine_without_a_gpu_says_so():
    if launcher.device_sm() is not None:
        pytest.skip("a CUDA device")
    with pytest.raises(EngineError, match="no CUDA device"):
        launcher.run("requantize", Launch("requantize_8", (1, 1, 1), (128, 1, 1), ()), [], [])
