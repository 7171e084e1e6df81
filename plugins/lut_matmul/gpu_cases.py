"""Cases of LutMatMul for `gpu-check`."""

from __future__ import annotations

from intaglio.plugins.csr_matmul.gpu_cases import sparse_rows
from intaglio.plugins.kernel_check.case import Case, Cases
from intaglio.plugins.kernel_check.inputs import Random, Sizes, codes, floats


def cases(sizes: Sizes, random: Random) -> Cases:
    """Every number of bits, tables of either dtype, float32, channels that fill no block, many rows, a vocabulary.

    Beside some of the tables are sparse values, with a full row and empty ones.
    """
    variants = ((4, "float16", "float16"), (3, "float16", "float32"), (2, "float16", "float16"))
    for bits, dtype, table in (*variants, (4, "float32", "float32")):
        for less in (0, 5):
            channels = sizes.channels - less
            packed = codes(random, channels, sizes.depth, bits)
            lut = floats(random, channels, 2**bits, dtype=table, scale=0.02)
            sparse = () if less else sparse_rows(random, channels, sizes.depth, table)
            for rows in sizes.rows if (bits, dtype, less) == (4, "float16", 0) else sizes.few_rows:
                x = floats(random, 1, rows, sizes.depth, dtype=dtype)
                yield Case("LutMatMul", (x, packed, lut), {"bits": bits, "K": sizes.depth})
                if sparse:
                    yield Case("LutMatMul", (x, packed, lut, *sparse), {"bits": bits, "K": sizes.depth})
    for bits, _, table in variants:
        packed, x = codes(random, sizes.wide, sizes.hidden, bits), floats(random, 65, sizes.hidden)
        lut = floats(random, sizes.wide, 2**bits, dtype=table, scale=0.02)
        yield Case("LutMatMul", (x, packed, lut), {"bits": bits, "K": sizes.hidden})
        depth = sizes.hidden + 32  # which ends within a stage, and a step
        packed, x = codes(random, sizes.channels, depth, bits), floats(random, 17, depth)
        lut = floats(random, sizes.channels, 2**bits, dtype=table, scale=0.02)
        yield Case("LutMatMul", (x, packed, lut), {"bits": bits, "K": depth})
        sparse = sparse_rows(random, sizes.channels, depth, "float32")
        yield Case("LutMatMul", (x, packed, lut, *sparse), {"bits": bits, "K": depth})
    x, packed = floats(random, 8, sizes.hidden), codes(random, sizes.vocabulary, sizes.hidden, 4)
    lut = floats(random, sizes.vocabulary, 16, scale=0.02)
    yield Case("LutMatMul", (x, packed, lut), {"bits": 4, "K": sizes.hidden})
