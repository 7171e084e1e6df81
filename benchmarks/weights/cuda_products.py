"""Times of the CUDA kernels' products over numbers of rows, beside a copy of as many bytes and cuBLAS.

    python -m benchmarks.weights.cuda_products [--rows 1 8 16 64 512] [--operators GroupMatMul-4 LutMatMul-4 IntLinear]

Each product has weights of its own, twice the L2 cache in turn, so that none of them is in it; times are medians on the
GPU (`intaglio gpu-check` measures alike). `copy` is the time of a copy within the GPU's memory of as many bytes / ours,
`cuBLAS` that of the same product of int8, or of dense float16 weights / ours. Results: benchmarks/results/.
"""

from __future__ import annotations

import argparse

import numpy as np

from intaglio.errors import EngineError
from intaglio.plugins.cuda import cublas, launcher
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.inputs import codes, factors, floats, int8s, int32s

SHAPES = ((768, 768), (768, 3072), (4096, 4096), (4096, 14336))  # depth, channels
ROWS = (1, 8, 16, 17, 32, 64, 128, 256, 512)
OPERATORS = ("IntLinear", "GroupMatMul-4", "GroupMatMul-3", "GroupMatMul-2", "GroupMatMul-8",
             "LutMatMul-4", "LutMatMul-3", "LutMatMul-2")  # fmt: skip
GROUP = 128


def case(operator: str, rows: int, depth: int, channels: int) -> Case:
    """A product of `operator`, with the bits of its weights behind a hyphen."""
    random = np.random.default_rng(0)
    name, _, bits = operator.partition("-")
    if name == "IntLinear":
        weight, bias = int8s(random, depth, channels), int32s(random, channels, bits=18)
        return Case(name, (int8s(random, rows, depth), weight, bias, *factors(random, channels, 42)), {"bits": 8})
    x, packed = floats(random, rows, depth), codes(random, channels, depth, int(bits))
    if name == "LutMatMul":
        table = floats(random, channels, 2 ** int(bits), scale=0.02)
        return Case(name, (x, packed, table), {"bits": int(bits), "K": depth})
    scales = floats(random, channels, depth // GROUP, scale=2.0**-8)
    return Case(name, (x, packed, scales), {"bits": int(bits), "K": depth, "group_size": GROUP})


def main() -> None:
    """Measure every product."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--operators", nargs="+", default=OPERATORS, choices=OPERATORS)
    options = parser.parse_args()
    try:
        sm = launcher.kernel_sm()
    except EngineError as error:
        print(f"Nothing to measure: {error}")
        return
    print(f"sm_{sm}\n{'':18}{'shape':>14}{'rows':>6}{'MB':>9}{'cold µs':>10}{'warm µs':>10}{'copy':>8}{'cuBLAS':>8}")
    for operator in options.operators:
        for depth, channels in SHAPES:
            for rows in options.rows:
                made = case(operator, rows, depth, channels)
                arrays = [array for array in made.inputs if array is not None]
                size = sum(array.nbytes for array in arrays) + sum(
                    int(np.prod(shape)) * dtype.itemsize for shape, dtype in made.made()
                )
                times = launcher.measure(made.folder, made.launch(sm), made.inputs, made.made())
                kind = "int8" if operator == "IntLinear" else "float16"
                copy, peer = launcher.copy_time(size), cublas.product_time(kind, rows, depth, channels)
                print(f"{operator:18}{f'{depth}×{channels}':>14}{rows:6}{size / 1e6:9.2f}{times.cold_us:10.2f}"
                      f"{times.warm_us:10.2f}{copy / times.cold_us:8.2f}{peer / times.cold_us:8.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
