"""A planted mistake in a kernel is detected: the emulator fails, or the results differ from the reference."""

import re
import shutil

import numpy as np
import pytest
from cuda_emulator import emulate
from kernel_cases import around_the_limits
from operator_cases import Case, indices, int8, sparse_rows

from intaglio.errors import EngineError
from intaglio.plugins import OPS
from intaglio.plugins.cuda.launching.geometry import PLUGINS
from intaglio.plugins.cuda.packed_weights import geometry as packed_weights
from intaglio.plugins.int_linear import launch as int_linear


def proofs_but_the_first(mutations):
    """Test parameters: the first shows that mistakes are detected; the others, one compilation each, are proofs."""
    first, *others = mutations
    return [first, *(pytest.param(each, marks=pytest.mark.proof) for each in others)]


MUTATIONS = {
    "no barrier before a stage is read": ("cuda/gemm.cuh", "__syncthreads();  // this tile", "// this tile"),
    "no wait for the copies": ("cuda/gemm.cuh", "async_copy::wait<STAGES - 2>();", ""),
    "no guard of the last columns": ("cuda/epilogue.cuh", "if (i < count) to[i]", "to[i]"),
    "no guard of the last rows": ("cuda/gemm.cuh", "if (row >= problem.m) continue;", ""),
    "no guard of the last narrow rows": ("cuda/gemm.cuh", "|| problem.first_row + row >= problem.m", ""),
    "no barrier before the sums of the warps": (
        "cuda/gemm.cuh",
        "__syncthreads();  // all have read the last stage",
        "",
    ),
    "no barrier before they are added": ("cuda/gemm.cuh", "__syncthreads();  // all parts", "// all parts"),
    "the sum of three warps": ("cuda/gemm.cuh", "part < WARPS; ++part", "part < WARPS - 1; ++part"),
    "no zeros beyond the last k": (
        "cuda/gemm.cuh",
        "problem.n, problem.k - first_k, columns",
        "problem.n, Shape::K, columns",
    ),
    "one swizzle wrong": ("cuda/gemm.cuh", "(column ^ (row / 2 % 4 * 16))", "column"),
}


@pytest.mark.parametrize("mutation", proofs_but_the_first(MUTATIONS))
def test_mutated_matrix_product_is_detected(tmp_path, mutation, monkeypatch):
    header, old, new = MUTATIONS[mutation]
    (tmp_path / "cuda").mkdir()
    shutil.copy(PLUGINS / "int_linear" / "kernel.cu", tmp_path)
    (tmp_path / header).write_text(mutated(header, old, new))
    cases = [(k, n, seed) for k, n in [(208, 144), (200, 131)] for seed in range(2)]
    narrow = any(is_wrong(str(tmp_path), *case) for case in cases)
    monkeypatch.setattr(int_linear, "MOST", 0)  # wide tiles from the 17th row on
    assert narrow or any(is_wrong(str(tmp_path), *case) for case in cases)


def mutated(source, old, new):
    """The text of a plugin file with `old`, which occurs once, replaced by `new`."""
    text = (PLUGINS / source).read_text()
    assert text.count(old) == 1
    return text.replace(old, new)


def is_wrong(folder, k, n, seed):
    random = np.random.default_rng(0)
    return fails_in(
        folder, Case("IntLinear", (int8(random, 70, k), int8(random, k, n), np.zeros(n, np.int32)), {"bits": 32}), seed
    )


def fails_in(folder, case, seed, offset=0):
    """Whether the kernels in `folder` fail or differ from the reference; sums are exact."""
    try:
        (got,) = emulate(folder, case.launch(), case.inputs, case.made(), 80, seed, offset)
    except EngineError as error:
        assert "error:" not in str(error), "it does not compile"
        return True
    return not np.array_equal(got, OPS[case.operator].reference(case.inputs, case.attributes)[0])


PACKED, FEW, MANY, SPARSE = (
    f"cuda/packed_weights/{name}.cuh" for name in ("product", "few_rows", "many_rows", "sparse_rows")
)
PACKED_MUTATIONS = {
    "no barrier before a stage is read": (MANY, "__syncthreads();  // this tile", "// this tile"),
    "no wait for the copies": (MANY, "async_copy::wait<Shape::COUNT - 2>();", ""),
    "no guard of the last channels": (PACKED, "if (count > 1) to[1]", "to[1]"),
    "no guard of the last rows": (MANY, "if (row < problem.rows) store_pair", "store_pair"),
    "no barrier before the sums of warps": (
        FEW,
        "    __syncthreads();\n#pragma unroll 1\n    for (int32_t pair",
        "    for (int32_t pair",
    ),
    "no barrier before the next sums of warps": (
        FEW,
        "        __syncthreads();  // all have read",
        "        // all have read",
    ),
    "some warps' sums left out": (FEW, "warp = 0; warp < WARPS;", "warp = 0; warp < WARPS / 2;"),
    "x not swizzled where it is read": (
        MANY,
        "(64 * chunk + 16 * t) ^ (g % 2 * 64)",
        "64 * chunk + 16 * t",
    ),
    "a group of rows left out": (
        FEW,
        "(problem.rows - problem.first_row + 7) / 8",
        "(problem.rows - problem.first_row) / 8",
    ),
    "numbers of another step": (FEW, "packed[j] += STRIDE / 32 * BITS;", "packed[j] += STRIDE / 64 * BITS;"),
    "bytes of the wrong nibbles": (
        "cuda/packed_weights/numbers.cuh",
        "numbers << 2 & 0x3f003f00",
        "numbers << 2 & 0x3f003e00",
    ),
}


@pytest.mark.parametrize("mutation", proofs_but_the_first(PACKED_MUTATIONS))
def test_mutated_packed_weight_product_is_detected(tmp_path, mutation):
    write_mutated_tables(tmp_path, "lut_matmul_3", *PACKED_MUTATIONS[mutation])
    assert any(product_fails_in(str(tmp_path), rows, seed) for seed in range(4) for rows in (5, 13, 60, 70))


def write_mutated_tables(folder, entry, header, old, new):
    """The kernel `entry` of LutMatMul alone, with a mistake in one of its headers."""
    (folder / "cuda" / "packed_weights").mkdir(parents=True)
    source = (PLUGINS / "lut_matmul" / "kernel.cu").read_text()
    kernel = source.index(
        'extern "C" __global__ void __launch_bounds__(packed_product::THREADS, packed_product::BLOCKS) lut_matmul_2'
    )
    (only,) = re.findall(rf'extern "C"[^{{}}]*{entry}\(.*?\n\}}\n', source[kernel:], re.DOTALL)
    (folder / "kernel.cu").write_text(source[:kernel] + only)
    for name in (PACKED, FEW, MANY, SPARSE):
        shutil.copy(PLUGINS / name, folder / name)
    (folder / header).write_text(mutated(header, old, new))


def product_fails_in(folder, rows, seed, sparse=()):
    """Whether the product of `rows` rows with 131 channels of 3 bits fails; odd rows are not aligned to 16 bytes."""
    random = np.random.default_rng(0)
    x, packed = random.integers(-4, 5, (rows, 2304)).astype(np.float16), indices(random, 131, 2304, 3)
    lut = random.integers(-2, 3, (131, 8)).astype(np.float16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_weights, "MOST", 2)  # more rows than 64 of these two blocks are many
        case = Case("LutMatMul", (x, packed, lut, *sparse), {"bits": 3, "K": 2304})
        return fails_in(folder, case, seed, rows % 2 * 4)


BESIDE_TABLES_MUTATIONS = {
    "a dropped value": (SPARSE, "exists = skipped < end[i] - begin[i];", "exists = skipped < end[i] - begin[i] - 1;"),
    "a piece left out": (SPARSE, "piece < WARPS; ++piece", "piece < WARPS - 1; ++piece"),
    "values of the next channel too": (SPARSE, "first + channel + i + 1", "first + channel + i + 2"),
    "a row of x left out": (SPARSE, "rows - warp_number + WARPS - 1", "rows - warp_number + WARPS - 2"),
    "some of the products of a row alone": (FEW, "if (rows == 1)", "if (rows <= 2)"),
    "no barrier before products are written": (MANY, "__syncthreads();  // all have read the last", "// the last"),
    "no barrier before products are read": (MANY, "__syncthreads();  // all products", "// all products"),
}


@pytest.mark.parametrize("mutation", proofs_but_the_first(BESIDE_TABLES_MUTATIONS))
def test_mutated_product_with_sparse_values_beside_tables_is_detected(tmp_path, mutation):
    write_mutated_tables(tmp_path, "lut_matmul_3_sparse", *BESIDE_TABLES_MUTATIONS[mutation])
    random = np.random.default_rng(0)
    counts = [0, 2304, 31, 32, 33] + [7] * 125 + [256]
    values, columns, offsets = sparse_rows(random, counts, 2304)
    values = random.integers(-4, 5, values.shape).astype(np.float16)
    rows_and_seeds = [(rows, seed) for seed in range(4) for rows in (1, 2, 13, 60, 70)]
    assert any(product_fails_in(str(tmp_path), *each, (values, columns, offsets)) for each in rows_and_seeds)


ROUNDING_MUTATIONS = {
    "no limit of the high half": (
        "min(max(int32_t(value >> 32), -shift.limit - 1), shift.limit)",
        "int32_t(value >> 32)",
    ),
    "a shift of 1": ("LEAST = 2", "LEAST = 1"),
    "a limit of 33 bits": ("int32_t((1u << (shift - 1)) - 1)", "int32_t((1u << shift) - 1)"),
    "a multiplier that overflows": ("min(max(multiplier, -most(shift)), most(shift))", "multiplier"),
    "halves rounded down": ("half(int64_t(1) << (shift - 1))", "half((int64_t(1) << (shift - 1)) - 1)"),
}


@pytest.mark.parametrize("mutation", proofs_but_the_first(ROUNDING_MUTATIONS))
def test_mutated_rounding_is_detected(tmp_path, mutation):
    (tmp_path / "cuda").mkdir()
    shutil.copy(PLUGINS / "requantize" / "kernel.cu", tmp_path)
    (tmp_path / "cuda" / "rounding.cuh").write_text(mutated("cuda/rounding.cuh", *ROUNDING_MUTATIONS[mutation]))
    x, multipliers, shifts = around_the_limits()
    cases = [Case("Requantize", (x, multipliers, shifts), {"bits": bits}) for bits in (8, 16)]
    assert any(fails_in(str(tmp_path), case, 0) for case in cases)


SPARSE_MUTATIONS = {
    "a thread's part left out": ("thread <= to; ++thread", "thread < to; ++thread"),
    "a row of the next window": ("row_offsets[candidate] < place", "row_offsets[candidate] <= place"),
    "no barrier before the parts are added": ("    __syncthreads();\n    for (int32_t m", "    for (int32_t m"),
    "one row too few searched": ("candidate < high && int64_t", "candidate < high - 1 && int64_t"),
}


@pytest.mark.parametrize("mutation", proofs_but_the_first(SPARSE_MUTATIONS))
def test_mutated_sparse_product_is_detected(tmp_path, mutation):
    old, new = SPARSE_MUTATIONS[mutation]
    (tmp_path / "kernel.cu").write_text(mutated("csr_matmul/kernel.cu", old, new))
    random = np.random.default_rng(0)
    counts = [0, 900, 0, 3, 605, 1, 2, 507, 4, 0]  # windows of the rows 0-1, 2-4, 5-7, 8-9
    columns = np.concatenate([np.sort(random.choice(1000, count, replace=False)) for count in counts]).astype(np.int32)
    x, values, y = (random.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 1000), len(columns), (3, 10)))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    case = Case("CsrMatMul", (x, values, columns, offsets, y), {})
    assert any(fails_in(str(tmp_path), case, seed) for seed in range(2))
