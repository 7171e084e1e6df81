"""Launch geometry uses only operations of TensorRT's symbolic dimensions, and gives the numeric results."""

import dataclasses

import numpy as np
import pytest
from covering import examples
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from kernel_cases import kernel_case
from operator_cases import ON_GPUS, Case

from intaglio.errors import EngineError
from intaglio.plugins import OPS
from intaglio.plugins.cuda import launcher
from intaglio.plugins.cuda.launching.geometry import Launch, Tensor, at_least_1, broadcast_length, product, total
from intaglio.plugins.cuda.launching.launches import launch


class Symbol:
    """A length with the operations of `tensorrt.plugin.ShapeExpr` that geometry uses, an int only on the right."""

    __hash__ = None

    def __init__(self, value: int) -> None:
        assert value >= 0, "no dimension"
        self.value = value

    def __add__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value + number(other))

    def __sub__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value - number(other))

    def __mul__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value * number(other))

    def __floordiv__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(self.value // number(other))

    def __eq__(self, other: object) -> "Symbol":
        return Symbol(int(self.value == number(other)))

    def __lt__(self, other: "int | Symbol") -> "Symbol":
        return Symbol(int(self.value < number(other)))

    def __bool__(self) -> bool:
        raise TypeError("a symbol is asked for its value")


def number(value):
    return value.value if isinstance(value, Symbol) else value


def symbolic(case: Case) -> Launch:
    """The launch with a symbol for every activation length that may be symbolic."""
    constant = {"weight", "packed", "bias", "shift", "out_shift", "sum_shift"}
    tensors = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        if array is None:
            tensors.append(None)
            continue
        # The width of a head is static.
        width = array.ndim - 1 if case.operator == "IntAttention" else None
        lengths = [
            length if spec.name in constant or spec.name.endswith("multiplier") or axis == width else Symbol(length)
            for axis, length in enumerate(array.shape)
        ]
        tensors.append(Tensor(lengths, array.dtype.name))
    return launch(case.folder, tensors, OPS[case.operator].complete(case.attributes), 80)


@pytest.mark.parametrize("operator", ON_GPUS)
def test_symbolic_and_numeric_geometry_agree(operator):
    random = np.random.default_rng(0)
    for _ in range(30):
        case = kernel_case(operator, random)
        made, expected = symbolic(case), case.launch()
        numbers = {name: tuple(map(number, getattr(made, name))) for name in ("grid", "block", "scalars")}
        assert dataclasses.replace(made, shared_bytes=number(made.shared_bytes), **numbers) == expected


@given(a=st.integers(0, 5), b=st.integers(0, 5), known=st.sampled_from(["", "a", "b", "ab"]))
def test_symbols_broadcast_as_their_values_do(a, b, known):
    assume(a == b or 1 in (a, b))
    expected = np.broadcast_shapes((a,), (b,))[0]
    lengths = [value if name in known else Symbol(value) for name, value in (("a", a), ("b", b))]
    assert number(broadcast_length(*lengths)) == expected


def test_no_grid_is_empty():
    assert [number(at_least_1(each)) for each in (0, 1, 7, Symbol(0), Symbol(1), Symbol(7))] == [1, 1, 7, 1, 1, 7]


def test_groups_below_32_are_refused_in_float16_alone():
    tensors = [Tensor((1, 64), "float16"), Tensor((8, 8), "int32"), Tensor((8, 4), "float16")]
    attributes = {"bits": 4, "K": 64, "group_size": 16}
    with pytest.raises(EngineError, match="groups of 16 in float16, and the GPU's kernel has those of multiples of 32"):
        launch("group_matmul", tensors, attributes, 80)
    wide = [Tensor((1, 64), "float32"), *tensors[1:]]
    assert launch("group_matmul", wide, attributes, 80).scalars[-2] == 16


@pytest.mark.parametrize("scalar", [-1, 2**31])
def test_scalar_that_no_dimension_can_be_is_refused(scalar):
    with pytest.raises(EngineError, match=f"kernel: scalar {scalar}, expected 0 to 2147483647"):
        Launch("kernel", (1, 1, 1), (128, 1, 1), (7, scalar))


def test_sums_of_symbolic_and_numeric_lengths_agree():
    assert total([]) == 0 and total([2, 3]) == 5
    assert number(total([2, Symbol(3), 4, Symbol(5)])) == 14
    assert number(product([2, Symbol(3), 4, Symbol(5)])) == 120


@settings(max_examples=examples(300))
@given(rows=st.integers(0, 5000), channels=st.integers(1, 600))
@example(rows=64, channels=1)
@example(rows=4096, channels=1)
@example(rows=4097, channels=1)
def test_grid_of_packed_weights_has_a_block_for_every_tile(rows, channels):
    tensors = [Tensor((rows, 128), "float16"), Tensor((channels, 16), "int32"), Tensor((channels, 16), "float16")]
    found = launch("lut_matmul", tensors, {"bits": 4, "K": 128}, 80)
    each, side = (32, 16) if rows <= found.scalars[3] else (64, 128)  # as product.cuh chooses
    assert found.grid == (-(-rows // each) * -(-channels // side), 1, 1)


def test_depth_that_fills_no_step_of_few_rows_takes_blocks_of_many():
    tensors = [Tensor((1, 160), "float16"), Tensor((48, 20), "int32"), Tensor((48, 16), "float16")]
    found = launch("lut_matmul", tensors, {"bits": 4, "K": 160}, 80)
    assert (found.grid, found.scalars[3]) == ((1, 1, 1), 0)


def test_groups_that_the_kernel_could_not_tell_apart_are_refused():
    depth = 2**20
    tensors = [Tensor((1, depth), "float16"), Tensor((8, depth // 8), "int32"), Tensor((8, 1), "float16")]
    with pytest.raises(EngineError, match="group_matmul: groups of 1048576 of 1048576 in_features"):
        launch("group_matmul", tensors, {"bits": 4, "K": depth, "group_size": depth}, 80)


def test_machine_without_a_gpu_is_reported():
    if launcher.device_sm() is not None:
        pytest.skip("a CUDA device")
    with pytest.raises(EngineError, match="no CUDA device"):
        launcher.run("requantize", Launch("requantize_8", (1, 1, 1), (128, 1, 1), ()), [], [])
