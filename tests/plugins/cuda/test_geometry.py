"""Launch geometry uses only operations of TensorRT's symbolic dimensions, and gives the numeric results."""

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_cases import folder_of, kernel_case, launch_of
from operator_cases import MAKERS, Case

from intaglio.errors import EngineError
from intaglio.plugins import OPS
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.geometry import Launch, Tensor, product, total
from intaglio.plugins.cuda.launches import launch


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
    """The launch with a symbol for every activation length that may be symbolic."""
    constant = {"weight", "bias", "shift", "out_shift", "sum_shift"}
    tensors = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        if array is None:
            tensors.append(None)
            continue
        # A length of 1 is static where it broadcasts, and so is the width of a head.
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
def test_symbolic_and_numeric_geometry_agree(operator):
    random = np.random.default_rng(0)
    for _ in range(30):
        case = kernel_case(operator, random)
        made, expected = symbolic(case), launch_of(case)
        numbers = {name: tuple(map(number, getattr(made, name))) for name in ("grid", "block", "scalars")}
        assert dataclasses.replace(made, shared_bytes=number(made.shared_bytes), **numbers) == expected


def test_sums_of_symbolic_and_numeric_lengths_agree():
    assert total([]) == 0 and total([2, 3]) == 5
    assert number(total([2, Symbol(3), 4, Symbol(5)])) == 14
    assert number(product([2, Symbol(3), 4, Symbol(5)])) == 120


@settings(max_examples=300)
@given(rows=st.integers(0, 5000), channels=st.integers(1, 600))
@example(rows=16, channels=1)
@example(rows=9, channels=128)
def test_grid_of_packed_weights_covers_every_tile(rows, channels):
    tensors = [Tensor((rows, 32), "float16"), Tensor((channels, 4), "int32"), Tensor((channels, 16), "float16")]
    count = launch("lut_matmul", tensors, {"bits": 4, "K": 32}).grid[0]
    tile = (8, 32) if rows <= 16 else (64, 128)  # as packed_product.cuh chooses
    needed = -(-rows // tile[0]) * -(-channels // tile[1])
    assert needed <= count <= max(2 * needed, needed + 8 * -(-channels // 128))


def test_machine_without_a_gpu_is_reported():
    if launcher.device_sm() is not None:
        pytest.skip("a CUDA device")
    with pytest.raises(EngineError, match="no CUDA device"):
        launcher.run("requantize", Launch("requantize_8", (1, 1, 1), (128, 1, 1), ()), [], [])
