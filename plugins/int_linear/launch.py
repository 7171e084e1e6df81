"""The launch of IntLinear's CUDA kernels: one block for each tile, whose shape depends on the number of rows.

A wide tile has 64 rows and 128 columns, a narrow one 16 and 32 (cuda/gemm.cuh). Count the cycles of a multiprocessor: a
wide block multiplies 64 of k in 512 (T4) or 256 (A100), and loads 12 KB for it from the L2 cache in 192, 64 bytes each.
While every block has a multiprocessor of its own, all of them take as long as one: k/64·512 or k/64·256. A narrow block
loads the same 12 KB for 256 of k, which takes longer than to multiply them: b of them on a multiprocessor take
b·k/256·192. So narrow blocks are ahead on a T4 (40 multiprocessors) up to b = 10, 400 blocks, the work of 25 wide ones;
on an A100 (108) up to b = 5, the work of 33. A node takes narrow blocks up to the number of rows at which it would have
32 wide ones: 320 rows of 768 columns, 64 of 3072 or 4096.
Measured on an H100 (132), both shapes in microseconds, narrow first: 768 x 768, 256 rows 7.3 and 8.6, 512 rows 13.3 and
8.7; 768 x 3072, 64 rows 7.8 and 9.0, 128 rows 13.8 and 9.1; 4096 x 4096, 32 rows 17.0 and 28.9, 64 rows 28.7 and 28.9,
65 rows 39.4 and 28.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from intaglio.plugins.cuda.launching.geometry import (
    Attributes,
    Launch,
    Length,
    Tensor,
    Tensors,
    at_least_1,
    blocks,
    choose,
    limits_around,
    product,
)
from intaglio.plugins.int_linear.signature import GATE, OUT_FACTORS, RESIDUAL, SIGNATURE
from intaglio.plugins.int_linear.spec import gelu_constants
from intaglio.plugins.integer_math import INT8
from intaglio.plugins.signature import FACTORS

THREADS = 128  # as in cuda/gemm.cuh
WIDE, NARROW = (64, 128), (16, 32)  # rows and columns of a tile, as there
MOST = 32  # wide blocks that narrow ones take the place of


def launch(inputs: Tensors, attributes: Attributes, sm: int) -> Launch:
    """Rows are all axes of x but the last; the kernel is chosen by bits, activation, and the inputs given."""
    return _launch(inputs, attributes, few_rows(inputs[1].shape[1]) if inputs[1] else 0)


def alternatives(inputs: Tensors, attributes: Attributes, sm: int) -> Iterator[Launch]:
    """The launches with narrow tiles up to more rows, and up to fewer."""
    columns = inputs[1].shape[1] if inputs[1] else None
    if isinstance(columns, int):
        yield from (_launch(inputs, attributes, few) for few in limits_around(few_rows(columns)))


def _launch(inputs: Tensors, attributes: Attributes, few: Length) -> Launch:
    """The launch with narrow tiles up to `few` rows."""
    given = {spec.name: each for spec, each in zip(SIGNATURE.inputs, inputs, strict=False) if each is not None}
    x, weight = given["x"], given["weight"]
    rows, columns = product(x.shape[:-1]), weight.shape[1]
    grids = ((blocks(columns, tile_columns), blocks(rows, tile_rows)) for tile_rows, tile_columns in (NARROW, WIDE))
    x_blocks, y_blocks = (choose(rows < few + 1, narrow, wide) for narrow, wide in zip(*grids, strict=True))
    grid = (x_blocks, y_blocks, 1)
    entry = f"int_linear_{attributes['bits']}"
    scalars = [rows, weight.shape[0], columns, few, *_lengths(given, FACTORS)]
    if attributes["activation"]:
        constants = gelu_constants(attributes)
        curve = (constants.saturation, constants.normalize, constants.square_shift, constants.coefficient)
        per_channel = _lengths(given, OUT_FACTORS)
        entry = "int_linear_gelu_channels" if per_channel else "int_linear_gelu"
        scalars += [*curve, *(per_channel or (constants.out_multiplier, constants.out_shift))]
        if "gate" in given:
            entry = "int_linear_gelu_gate"
            scalars += _lengths(given, GATE[1:])
        else:
            scalars.append(attributes["out_zero_point"] - INT8[0])  # scalars are not negative
    elif "residual" in given:
        entry = "int_linear_16_residual"
        scalars += _lengths(given, RESIDUAL[1:])
    return Launch(entry, grid, (THREADS, 1, 1), tuple(scalars))


def _lengths(given: Mapping[str, Tensor], names: Iterable[str]) -> list[Length]:
    return [given[name].shape[0] for name in names if name in given]


def few_rows(columns: Length) -> Length:
    """The most rows of x for which the tiles are narrow."""
    if not isinstance(columns, int):
        return NARROW[0]
    rows, width = WIDE
    return max(MOST // at_least_1(blocks(columns, width)) * rows, NARROW[0])
