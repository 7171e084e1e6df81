"""The generated micro-kernels: their variants and their results."""

import ctypes
import itertools
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_bounds import check_outputs
from operator_cases import Case as OperatorCase

from intaglio.plugins import OPS, ort
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.group_matmul.signature import LARGEST_GROUP, smallest_group
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.plugins.micro_kernels.header import headers
from intaglio.plugins.micro_kernels.instruction_sets import INSTRUCTION_SETS, WITHOUT_TILES
from intaglio.plugins.micro_kernels.micro_kernel import (
    BITS,
    GROUP_LEVELS,
    M_U,
    T_U,
    MicroKernel,
    MicroKernelCase,
    cases,
    registers,
    search,
    variants,
)
from intaglio.plugins.micro_kernels.units import REST, is_split, place, unit_loads, unit_vectors, upper_place
from intaglio.plugins.ort import build

NAMES = list(INSTRUCTION_SETS)
ALL_CASES = [(name, case) for name in NAMES for operator in BITS for case in cases(operator, INSTRUCTION_SETS[name])]


# --- generated variants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_same_description_gives_the_same_source(name):
    assert dict(headers(name)) == dict(headers(name))
    for text in dict(headers(name)).values():
        assert "None" not in text


def test_documented_kernel_is_emitted():
    shown = (build.ROOT / "docs" / "kernel-generation.md").read_text().split("```cpp\n")[1].split("```")[0]
    assert shown in dict(headers("avx512vbmi"))["lut_matmul.h"]


def test_instruction_sets_equal_the_compiled_ones():
    assert [name for name in build.INSTRUCTION_SETS if name not in WITHOUT_TILES] == NAMES
    assert set(WITHOUT_TILES) < set(build.INSTRUCTION_SETS) and set(WITHOUT_TILES.values()) < set(NAMES)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("lane_bits", [8, 32])
def test_vectors_of_a_unit_cover_each_bit_once(bits, lane_bits):
    covered = []
    for vector in range(unit_vectors(bits, lane_bits)):
        load, shift = place(bits, lane_bits, vector)
        if is_split(bits):
            above = upper_place(bits, vector)
            covered += [(load, shift + bit) for bit in range(4)]
            covered += [(above.load, above.shift + bit) for bit in range(bits - 4)]
            continue
        for bit in range(shift, shift + bits):
            covered.append((bit // 2, lane_bits - 2 + bit % 2) if load == REST else (load, bit))
    assert sorted(covered) == [(load, bit) for load in range(unit_loads(bits)) for bit in range(lane_bits)]


@given(st.sampled_from(ALL_CASES), st.integers(8, 64))
def test_search_finds_exactly_the_variants_that_fit_the_registers(found, count):
    name, case = found
    isa = INSTRUCTION_SETS[name]._replace(registers=count)
    words = case.planes == 2 and isa.bytes.multiply_words  # a vector of bytes is two of words
    words = words and (case.operator != "group_matmul" or case.bits == 8)
    planes, lanes = 1 if words else max(case.planes, 1), 4 if case.planes else 1
    vectors = unit_vectors(case.bits, 8 if case.planes else 32)
    fitting = set()
    for m_u in M_U:
        for t_u in T_U:
            pairs = case.planes and isa.bytes.multiply_pairs  # added up in 16 bits, then widened by ones
            weights = m_u * t_u * (2 if words else 1)
            held = (2 if pairs else planes * m_u) + weights + case.rows * planes * t_u  # x, weights, sums
            if case.folder == "group_matmul":
                table = 1 if case.planes else isa.table_registers * 16 // isa.table_lanes
                computed = isa.forms.look_up_two or isa.forms.floats_of
                levels = 5 * bool(computed) if case.bits == 8 else table
                held += 1 + (levels if case.operator == GROUP_LEVELS else 0 if case.planes else t_u)  # and the mask
                steps = vectors % m_u == 0 or (m_u % vectors == 0 and 16 % (m_u * lanes) == 0)
            else:
                if case.planes:
                    pairs = case.rows == 1 and isa.bytes.index_bits >= 2 * case.bits
                    tables_held = 2 if pairs else 1
                else:
                    tables_held = isa.table_registers * -(-(2**case.bits) // isa.table_lanes)
                held += t_u * tables_held + (isa.bytes if case.planes else isa).index_needs_mask
                steps = vectors % m_u == 0
            held += 3 if case.bits in (3, 5, 6) else 1  # registers for unpacking, and the masks
            if steps and held <= count:
                fitting.add((m_u, t_u))
    assert {(kernel.m_u, kernel.t_u) for kernel in search(case, isa)} == fitting


@pytest.mark.parametrize("operator", BITS)
@pytest.mark.parametrize("name", NAMES)
def test_every_case_has_variants_within_the_registers(name, operator):
    isa = INSTRUCTION_SETS[name]
    for case in cases(operator, isa):
        found = variants(case, isa)
        assert 1 <= len(found) == len(set(found))
        assert all(registers(kernel, isa) <= isa.registers for kernel in found)


def test_one_row_in_one_plane_equals_the_qigen_model():
    """Equation 4, m_u + m_u·t_u + t_u, plus zero points, the mask and the unpacked words."""
    kernel = MicroKernel(MicroKernelCase("group_matmul", 4, 0, 1), 3, 2)
    assert registers(kernel, INSTRUCTION_SETS["avx2"]) == (3 + 3 * 2 + 2) + (2 + 1 + 1)


# --- cache blocking ---------------------------------------------------------------------------------------------------

BLOCKING = """
#include "plugins/cpu/cache_blocking.h"
extern "C" void block(const int64_t* n, int64_t* found) {
    const auto best = intaglio::largest_cache_block({n[0], n[1], n[2]}, n[3], n[4], n[5], n[6], n[7]);
    found[0] = best.depth, found[1] = best.rows;
}
"""


@pytest.fixture(scope="module")
def block(tmp_path_factory):
    """`largest_cache_block` of plugins/cpu/cache_blocking.h."""
    folder = tmp_path_factory.mktemp("blocking")
    (folder / "block.cpp").write_text(BLOCKING)
    command = [*build.compiler(), "-std=c++17", "-shared", "-fPIC", f"-I{build.ROOT}", "block.cpp", "-o", "block.so"]
    subprocess.run(command, check=True, cwd=folder)
    call = ctypes.CDLL(str(folder / "block.so")).block

    def largest(*numbers: int) -> tuple[int, int]:
        found = (ctypes.c_int64 * 2)()
        call((ctypes.c_int64 * 8)(*numbers), found)
        return found[0], found[1]

    return largest


@given(
    bits=st.tuples(st.integers(1, 256), st.integers(1, 32), st.integers(1, 256)),
    depth_step=st.integers(1, 64),
    depth_steps=st.integers(1, 20),
    row_step=st.integers(1, 16),
    row_steps=st.integers(1, 8),
    cache=st.integers(1, 200_000),
)
def test_block_sizes_maximise_cache_use(block, bits, depth_step, depth_steps, row_step, row_steps, cache):
    """QIGen's equation 5, by trying all blocks; if none fits, the smallest."""
    x, weight, y = bits

    def filled(m: int, t: int) -> int:
        return x * m + weight * m * t + y * t

    depth, rows = depth_step * depth_steps, row_step * row_steps
    all_blocks = [(m, t) for m in range(depth_step, depth + 1, depth_step) for t in range(row_step, rows + 1, row_step)]
    fitting = [filled(*each) for each in all_blocks if filled(*each) <= cache]
    m_b, t_b = block(x, weight, y, depth_step, depth, row_step, rows, cache)
    assert m_b % depth_step == 0 and t_b % row_step == 0
    if fitting:
        assert filled(m_b, t_b) == max(fitting)
    else:
        assert (m_b, t_b) == (depth_step, row_step)


# --- results ----------------------------------------------------------------------------------------------------------


def operator_case(case: MicroKernelCase, random: np.random.Generator, largest: bool = False) -> OperatorCase:
    """Inputs that use the micro-kernel of a case, with a remainder in every direction; `largest`: for full sums."""
    rows, depth = 75, 32 * 5 * 3  # no full tile of rows, no full unit of K
    if largest and case.operator == "lut_matmul" and case.planes == 2:
        depth *= 10  # sums of words fill 32 bits earlier
    x = random.normal(size=(case.rows, depth)).astype(np.float32)
    numbers = random.integers(0, 2**case.bits, (rows, depth))
    if largest:  # a first value of 1 sets the step; the digits of the others are -128
        weights = 256 ** np.arange(max(case.planes, 1))
        x[:] = (2 * weights[-1] - 128 * weights.sum()) / (127 * weights.sum())
        x[:, 0], numbers[:] = 1, 2**case.bits - 1
    packed = pack(numbers, case.bits)
    attributes = {"bits": case.bits, "K": depth, "activation_bits": {1: 8, 2: 16}.get(case.planes, 32)}
    if case.folder == "group_matmul":
        size = smallest_group(case.bits)
        scales = random.normal(size=(rows, depth // size)).astype(np.float32)
        attributes["group_size"] = size
        if case.operator == GROUP_LEVELS:
            steps = random.integers(-127, 128, 2**case.bits) if case.planes else random.normal(size=2**case.bits)
            return OperatorCase("GroupMatMul", (x, packed, scales, None, steps.astype(np.float32)), attributes)
        zero_points = random.integers(0, 2**case.bits, scales.shape).astype(np.uint8)
        return OperatorCase("GroupMatMul", (x, packed, scales, zero_points), attributes)
    lut = random.normal(size=(rows, 2**case.bits)).astype(np.float32)
    if case.planes:
        steps = random.integers(-127, 128, lut.shape)
        steps[:, 0] = 127
        lut = (steps * random.uniform(0.5, 2, (rows, 1))).astype(np.float32)
    return OperatorCase("LutMatMul", (x, packed, lut), attributes)


@pytest.mark.parametrize("operator", BITS)
@pytest.mark.parametrize("name", [name for name in build.instruction_sets() if name not in WITHOUT_TILES])
def test_every_variant_equals_the_reference(name, operator, monkeypatch, cache):
    onnxruntime = pytest.importorskip("onnxruntime")
    ir = pytest.importorskip("onnx_ir")
    if name not in ort.supported_instruction_sets():
        pytest.skip(f"this CPU has no {name}")
    monkeypatch.setenv("INTAGLIO_ISA", name)
    random = np.random.default_rng(0)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    assert ort.register(options)
    for case, largest in itertools.product(cases(operator, INSTRUCTION_SETS[name]), (False, True)):
        inputs = operator_case(case, random, largest)
        expected = OPS[inputs.operator].reference(inputs.inputs, inputs.attributes)
        model = ir.to_proto(node_model(inputs, True)).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for kernel in variants(case, INSTRUCTION_SETS[name]):
            for prefetch in (0, LARGEST_GROUP):
                ort.select_kernel(kernel._replace(prefetch=prefetch))
                check_outputs(inputs, session.run(None, feeds(inputs, True)), expected)


def test_unknown_kernel_is_refused():
    with pytest.raises(ValueError, match="no micro-kernel group_matmul_bits7"):
        ort.select_kernel(MicroKernel(MicroKernelCase("group_matmul", 7, 2, 1), 2, 4))
    with pytest.raises(ValueError, match="no micro-kernel"):
        ort.select_kernel(MicroKernel(MicroKernelCase("int_linear", 4, 2, 1), 2, 4))
