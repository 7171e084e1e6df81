"""Rows of x have the same result, to the bit, alone and among others, whichever kernel takes so many of them."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import Case as OperatorCase

from intaglio.plugins import OPS, ort
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.group_matmul.signature import smallest_group
from intaglio.plugins.kernel_check.node_model import node_model
from intaglio.plugins.micro_kernels.instruction_sets import WITHOUT_TILES
from intaglio.plugins.micro_kernels.micro_kernel import BITS
from intaglio.plugins.ort import build


@st.composite
def rows_of_tables(draw) -> OperatorCase:
    """LutMatMul with up to 140 rows of x: tables of bytes or not, and sums as large as there are."""
    bits = draw(st.sampled_from(BITS["lut_matmul"]))
    depth = draw(st.sampled_from((32, 96, 480, 992, 1024, 2048, 2080, 4512)))
    rows, count = draw(st.integers(1, 40)), draw(st.integers(2, 140))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    numbers = random.integers(0, 2**bits, (rows, depth))
    lut = random.normal(size=(rows, 2**bits))
    if draw(st.booleans()):
        steps = random.integers(-127, 128, lut.shape)
        steps[:, 0] = 127
        lut = steps * random.uniform(0.5, 2, (rows, 1))
    x = random.normal(size=(count, depth)).astype(np.float32)
    activation_bits = draw(st.sampled_from((8, 16, 32)))
    if activation_bits <= 16 and draw(st.booleans()):
        x[:], numbers[:] = draw(st.sampled_from((1, -1))), lut.argmax(1)[:, None]
    x[random.integers(count)] *= draw(st.sampled_from((1, 0, np.inf)))
    attributes = {"bits": bits, "K": depth, "activation_bits": activation_bits}
    return OperatorCase("LutMatMul", (x, pack(numbers, bits), lut.astype(np.float32)), attributes)


@st.composite
def rows_of_groups(draw) -> OperatorCase:
    """GroupMatMul with up to 140 rows of x, and groups that fill the parts that K is cut into, or do not."""
    bits = draw(st.sampled_from(BITS["group_matmul"]))
    size = smallest_group(bits) * draw(st.sampled_from((1, 2, 3, 8, 16, 17, 32, 40)))
    depth = math.lcm(32, size) * draw(st.integers(1, 1 + 1024 // size))
    rows, count = draw(st.integers(1, 150)), draw(st.integers(2, 140))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    packed = pack(random.integers(0, 2**bits, (rows, depth)), bits)
    scales = random.normal(size=(rows, depth // size)).astype(np.float32)
    x = random.normal(size=(count, depth)).astype(np.float32)
    x[random.integers(count)] *= draw(st.sampled_from((1, 0, np.inf)))
    zero_points = minimums = None
    if draw(st.booleans()):
        zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8)
        minimums = random.normal(size=scales.T.shape).astype(np.float32) if draw(st.booleans()) else None
    levels = None
    if bits == 4 and zero_points is None and draw(st.booleans()):
        levels = random.permutation(16).astype(np.float32) - draw(st.sampled_from((0, 8, 0.3)))
    if bits == 8 and zero_points is None and draw(st.booleans()):
        kind = draw(st.sampled_from((ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, None)))
        codes = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32) if kind else random.normal(size=256)
        levels = np.where(np.isfinite(codes), codes, 1).astype(np.float32)
    if draw(st.booleans()):  # as K-quants have them: whole multiples of a factor
        scales = (random.integers(-127, 128, scales.shape) / 8).astype(np.float32)
    inputs = (x, packed, scales, zero_points, levels, minimums)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    attributes = {"bits": bits, "K": depth, "group_size": size, "activation_bits": draw(st.sampled_from((8, 16, 32)))}
    return OperatorCase("GroupMatMul", inputs, attributes)


@pytest.mark.parametrize("name", [name for name in build.instruction_sets() if name not in WITHOUT_TILES])
@given(groups=rows_of_groups(), tables=rows_of_tables())
def test_rows_of_x_have_the_same_bits_alone_and_together(name, groups, tables):
    onnxruntime = pytest.importorskip("onnxruntime")
    ir = pytest.importorskip("onnx_ir")
    if name not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    for case in groups, tables:
        check_rows(case, name, onnxruntime, ir)


def check_rows(case, name, onnxruntime, ir):
    """All rows at once have the bits that some of them have, and are right."""
    model = ir.to_proto(node_model(case, True))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("INTAGLIO_ISA", name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        assert ort.register(options)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x, *constants = case.inputs
    y = session.run(None, {"x": x})[0]
    finite = np.isfinite(x).all(1)
    of_finite = replace(case, inputs=(x[finite], *constants))
    check_outputs(of_finite, [y[finite]], OPS[case.operator].reference(of_finite.inputs, case.attributes))
    for first in range(len(x)):
        for count in (1, 2, 3, 5, 6, 7, 68) if first == 0 else (1,):
            np.testing.assert_array_equal(
                session.run(None, {"x": x[first : first + count]})[0], y[first : first + count]
            )
