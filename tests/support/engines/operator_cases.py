"""Random, valid inputs of every operator, for all tests of bodies and kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from intaglio.plugins import OPS
from intaglio.plugins.bit_packing import pack
from intaglio.plugins.cuda.launching.launches import operators
from intaglio.plugins.group_matmul.signature import LEVEL_BITS, smallest_group
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.quantize_cache.slots import quantize
from intaglio.plugins.registry import UNPLUGGED

Array = npt.NDArray[Any]
Random = np.random.Generator

INT32 = (-(2**31), 2**31 - 1)


def int8(random: Random, *shape: int) -> Array:
    """Any int8; sometimes only the two extremes."""
    low, high = (-128, 128) if random.random() < 0.8 else (-1, 1)
    values = random.integers(low, high, shape)
    return (values if low == -128 else np.where(values < 0, -128, 127)).astype(np.int8)


def int32(random: Random, *shape: int) -> Array:
    """int32 of any magnitude, including the extremes."""
    bits = int(random.integers(1, 33))
    values = random.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)
    if random.random() < 0.2:
        values = np.where(random.random(shape) < 0.1, random.choice(INT32, shape), values)
    return values.astype(np.int32)


def factors(random: Random, channels: int, per_channel: bool, limit: int = 2**31) -> tuple[Array, Array]:
    """multiplier and shift: mostly like those of a real scale, sometimes any valid ones."""
    size = channels if per_channel else 1
    if random.random() < 0.2:  # short ones, for which kernels have a separate path
        return random.integers(0, 2**15, size).astype(np.int32), random.integers(0, 31, size).astype(np.int32)
    if random.random() < 0.7:
        return (
            random.integers(limit // 2, limit, size).astype(np.int32),
            random.integers(28, 48, size).astype(np.int32),
        )
    return random.integers(-limit + 1, limit, size).astype(np.int32), random.integers(0, 63, size).astype(np.int32)


def scale(random: Random, low: float, high: float) -> float:
    """A scale, log-uniform."""
    return float(np.float32(np.exp(random.uniform(np.log(low), np.log(high)))))


def leading(random: Random) -> tuple[int, ...]:
    """Leading axes: none to two, some of length 0."""
    return tuple(int(length) for length in random.integers(0 if random.random() < 0.1 else 1, 5, random.integers(0, 3)))


def width(random: Random) -> int:
    """A last axis: often odd, sometimes long."""
    return int(random.integers(1, 70)) if random.random() < 0.9 else int(random.choice([384, 511, 1024]))


def requantize(random: Random) -> Case:
    """Any int32, any scales."""
    channels = width(random)
    multiplier, shift = factors(random, channels, random.random() < 0.5)
    x = int32(random, *leading(random), channels)
    return Case("Requantize", (x, multiplier, shift), {"bits": int(random.choice([8, 16]))})


def int_add(random: Random) -> Case:
    """int8 or int32, sometimes with broadcast axes."""
    channels = width(random)
    shape = (*leading(random), channels)
    other = tuple(1 if random.random() < 0.2 else length for length in shape)
    make = [int8 if random.random() < 0.5 else int32 for _ in range(2)]
    x_multiplier, shift = factors(random, channels, random.random() < 0.5, 2**30)
    y_multiplier, _ = factors(random, channels, random.random() < 0.5, 2**30)
    inputs = (make[0](random, *shape), make[1](random, *other), x_multiplier, y_multiplier, shift)
    return Case("IntAdd", inputs, {"bits": int(random.choice([8, 16]))})


def zero_point(random: Random) -> dict[str, int]:
    """Mostly one, of all that 8 bits have."""
    return {"out_zero_point": int(random.integers(-128, 128))} if random.random() < 0.7 else {}


def int_gelu(random: Random) -> Case:
    """Any int32, with input scales of 8, 16 and 32 bits."""
    channels = width(random)
    attributes = {"scale": scale(random, 1e-9, 1), "out_scale": scale(random, 0.03, 10), **zero_point(random)}
    final = factors(random, channels, random.random() < 0.5) if random.random() < 0.5 else (None, None)
    return Case("IntGelu", (int32(random, *leading(random), channels), *final), attributes)


def int_softmax(random: Random) -> Case:
    """Any int32, with and without masks that leave some rows empty."""
    channels = width(random)
    shape = (*leading(random), channels)
    mask = None
    if random.random() < 0.5:
        mask = random.random([length if random.random() < 0.7 else 1 for length in shape]) < random.random()
    attributes = {"scale": scale(random, 1e-8, 100), "out_scale": scale(random, 1e-4, 1)}
    return Case("IntSoftmax", (int32(random, *shape), mask), attributes)


def int_layer_norm(random: Random) -> Case:
    """Any int32, including constant rows."""
    channels = width(random)
    x = int32(random, *leading(random), channels)
    if random.random() < 0.2 and x.size:
        x.reshape(-1, channels)[0] = int(random.integers(*INT32))
    bits = int(random.choice([8, 15, 20, 31]))
    weight = random.integers(-(2**bits), 2**bits, channels).astype(np.int32)
    attributes = {
        "scale": scale(random, 1e-6, 1),
        "weight_scale": float(np.float32(4.0 / 2**bits)),
        "bias_scale": scale(random, 1e-9, 1e-3),
        "out_scale": scale(random, 1e-3, 1),
        "epsilon": float(random.choice([0.0, 1e-12, 1e-5, 1.0])),
    }
    if random.random() < 0.5:
        attributes["wide_scale"] = scale(random, 1e-4, 1e-2)
        if (
            random.random() < 0.5
        ):  # a power of two away from that of the weights, for which kernels have a separate path
            attributes["wide_scale"] = attributes["weight_scale"] * 2.0 ** int(random.integers(-4, 12))
    final = factors(random, channels, random.random() < 0.5) if random.random() < 0.5 else (None, None)
    inputs = (x, weight, int32(random, channels), *final, *residual(random, x))
    return Case("IntLayerNorm", inputs, attributes, int(random.choice([1, 2])))


def residual(random: Random, x: Array) -> tuple[Array | None, ...]:
    """Residual of IntLayerNorm of either dtype and its scales; in half of the cases none."""
    if random.random() < 0.5:
        return (None,) * 4
    made = (int8 if random.random() < 0.5 else int32)(random, *x.shape)
    x_multiplier, shift = factors(random, 1, False, 2**30)
    return made, x_multiplier, factors(random, 1, False, 2**30)[0], shift


def int_linear(random: Random) -> Case:
    """Every epilogue; K and N odd, a single row, no row."""
    k, n = width(random), width(random)
    bits, activation = random.choice([(32, ""), (16, ""), (8, ""), (8, "gelu")])
    attributes: dict[str, Any] = {"bits": int(bits), "activation": str(activation)}
    final: tuple[Array | None, ...] = (None,) * 4
    if bits != "32":
        final = (*factors(random, n, random.random() < 0.8), None, None)
    if activation:
        attributes["out_scale"] = scale(random, 0.03, 1)
        if random.random() < 0.5:
            final = (*final[:2], *factors(random, n, random.random() < 0.8))
    rows = leading(random)
    if final[2] is not None and random.random() < 0.5:
        final = (*final, int32(random, *rows, n), *factors(random, n, random.random() < 0.8))
    elif activation:
        attributes |= zero_point(random)
    elif bits == "16" and random.random() < 0.5:
        multiple = 2 ** random.integers(0, 16, n if random.random() < 0.8 else 1).astype(np.int32)
        final = (*final, None, None, None, int32(random, *rows, n), multiple)
    bias = random.integers(-(2**20), 2**20, n).astype(np.int32)
    return Case("IntLinear", (int8(random, *rows, k), int8(random, k, n), bias, *final), attributes)


def int_matmul(random: Random) -> Case:
    """Batch axes that broadcast, every epilogue."""
    m, k, n = width(random), width(random), width(random)
    batch = leading(random)
    # MatMulInteger of ONNX Runtime, in the body, does not broadcast an axis of 1 to one of 0.
    shared = random.random() < 0.8
    other = tuple(1 if length and random.random() < 0.2 else length for length in batch) if shared else ()
    bits = int(random.choice([8, 16, 32]))
    final = (None, None) if bits == 32 else factors(random, n, random.random() < 0.5)
    inputs = (int8(random, *batch, m, k), int8(random, *other, k, n), *final)
    return Case("IntMatMul", inputs, {"bits": bits})


def int_attention(random: Random) -> Case:
    """Heads of odd size, other numbers of queries than keys, packed or not, masks and biases per key, query or head."""
    heads, depth = int(random.integers(1, 5)), int(random.choice([1, 3, 8, 16, 32, 33, 64]))
    batch, queries, keys = int(random.integers(0, 4)), width(random), width(random)
    if random.random() < 0.3:
        keys = queries
    mask = None
    if random.random() < 0.6:
        shape = [length if random.random() < 0.5 else 1 for length in (batch, heads, queries, keys)]
        mask = random.random(shape) < random.choice([0.1, 0.5, 0.9])
    bias = None
    if mask is not None and random.random() < 0.5:
        bias = int32(random, *(length if random.random() < 0.5 else 1 for length in (batch, heads, queries, keys)))
    channels = heads * depth
    multiplier = random.integers(2**30, 2**31, channels if random.random() < 0.5 else 1).astype(np.int32)
    shift = np.full(multiplier.shape, int(random.integers(34, 42)), np.int32)
    packed = int(random.integers(0, 2))
    stride = channels * (3 if packed else 1)
    inputs = (int8(random, batch, queries, stride), *(int8(random, batch, keys, stride) for _ in range(2)))
    attributes = {"num_heads": heads, "scale": scale(random, 1e-6, 1e-1), "packed": packed}
    return Case("IntAttention", (*inputs, multiplier, shift, mask, bias), attributes)


def int_rotary(random: Random) -> Case:
    """Any int32, also as cosines and sines; halves of a head of any size."""
    heads, half = int(random.integers(1, 5)), int(random.choice([1, 3, 4, 8, 16, 17, 32, 36]))
    batch, length = int(random.integers(0, 4)), int(random.integers(0 if random.random() < 0.1 else 1, 40))
    low, high = (-(2**14), 2**14 + 1) if random.random() < 0.8 else INT32
    tables = (random.integers(low, high, (length, half)).astype(np.int32) for _ in range(2))
    x = int32(random, batch, length, 2 * heads * half)
    return Case("IntRotary", (x, *tables, *factors(random, 1, False)), {"num_heads": heads})


def floats(random: Random, *shape: int) -> Array:
    """float32 of one magnitude or, sometimes, of many, including zeros."""
    values = random.normal(size=shape) * 10.0 ** random.uniform(-4, 4)
    if random.random() < 0.3:
        values *= 10.0 ** random.uniform(-3, 1, shape)
    if random.random() < 0.3:
        values *= random.random(shape) < 0.7
    return values.astype(np.float32)


def depth_of_words(random: Random) -> int:
    """A K that fills complete words: mostly short, and no multiple of the vector length."""
    return 32 * int(random.integers(1, 12) if random.random() < 0.8 else random.integers(12, 70))


def indices(random: Random, rows: int, depth: int, bits: int) -> Array:
    """Packed codes of `bits`."""
    return pack(random.integers(0, 2**bits, (rows, depth)), bits)


def lut_matmul(random: Random) -> Case:
    """Codebooks of any values, or of scaled 8-bit integers, for which kernels have a separate path; sparse values."""
    bits, rows, depth = int(random.choice([2, 3, 4])), width(random), depth_of_words(random)
    lut = floats(random, rows, 2**bits)
    if random.random() < 0.5:
        entries = random.integers(-127, 128, lut.shape)
        entries[:, 0] = 127
        lut = (entries * np.abs(floats(random, rows, 1))).astype(np.float32)
    attributes = {"bits": bits, "K": depth, "activation_bits": int(random.choice([8, 16, 32]))}
    inputs = floats(random, *leading(random), depth), indices(random, rows, depth, bits), lut
    sparse = sparse_matrix(random, rows, depth) if random.random() < 0.5 else ()
    return Case("LutMatMul", (*inputs, *sparse), attributes)


def sparse_matrix(random: Random, rows: int, depth: int) -> tuple[Array, Array, Array]:
    """values, columns and row offsets [rows, depth]: empty rows, nearly full rows, or no values at all."""
    counts = random.integers(0, depth + 1, rows) * (random.random(rows) < random.choice([0.0, 0.1, 0.9]))
    return sparse_rows(random, counts, depth)


def sparse_rows(random: Random, counts: Sequence[int] | Array, depth: int) -> tuple[Array, Array, Array]:
    """The same of a matrix whose row n has counts[n] values."""
    columns = [np.sort(random.choice(depth, count, replace=False)) for count in counts]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return floats(random, int(offsets[-1])), np.concatenate(columns).astype(np.int32), offsets


def csr_matmul(random: Random) -> Case:
    """A sparse matrix of any kind."""
    rows, depth = width(random), width(random)
    sparse, shape = sparse_matrix(random, rows, depth), leading(random)
    return Case("CsrMatMul", (floats(random, *shape, depth), *sparse, floats(random, *shape, rows)), {})


def group_matmul(random: Random) -> Case:
    """Groups from the smallest to the full row; with zero points, minimums or levels, any or of a grid, or without."""
    bits, rows = int(random.choice([2, 3, 4, 5, 6, 8])), width(random)
    size = smallest_group(bits) * int(random.choice([1, 2, 3, 4, 8]))
    depth = size * int(random.integers(1, 6)) * (2 if size % 32 else 1)
    if random.random() < 0.3:  # super-blocks of 256
        size = smallest_group(bits) * int(random.choice([1, 2]))
        depth = 256 * int(random.integers(1, 4))
    scales = group_factors(random, rows, depth, size)
    zero_points = random.integers(0, 2**bits, scales.shape).astype(np.uint8) if random.random() < 0.5 else None
    attributes = {"bits": bits, "K": depth, "group_size": size, "activation_bits": int(random.choice([8, 16, 32]))}
    x, packed = floats(random, *leading(random), depth), indices(random, rows, depth, bits)
    if bits in LEVEL_BITS and random.random() < 0.5:
        return Case("GroupMatMul", (x, packed, scales, None, levels(random, bits)), attributes)
    if random.random() < 0.4:
        minimums = np.ascontiguousarray(group_factors(random, rows, depth, size).T)
        return Case("GroupMatMul", (x, packed, scales, zero_points, None, minimums), attributes)
    return Case("GroupMatMul", (x, packed, scales, zero_points), attributes)


def group_factors(random: Random, rows: int, depth: int, size: int) -> Array:
    """Scales [rows, groups] of groups of `size`: any, of float16, or small integers times one number for each 256."""
    shape = rows, depth // size
    kind = random.choice(["any", "float16", "products"])
    if kind == "products" and depth % 256 == 0:
        steps = random.integers(-127, 128, shape) * random.choice([0, 1], shape, p=[0.1, 0.9])
        numbers = random.normal(size=(rows, depth // 256)).astype(np.float16).astype(np.float32)
        return (np.repeat(numbers, 256 // size, axis=1) * steps).astype(np.float32)
    if kind == "float16":
        return random.normal(size=shape).astype(np.float16).astype(np.float32)
    return floats(random, *shape)


def levels(random: Random, bits: int) -> Array:
    """Any numbers; small integers times one number, as of MXFP4 and IQ4; or numbers on lines, as of FP8."""
    if bits == 8 and random.random() < 0.5:
        starts, slopes = (random.integers(-99, 99, (32, 1)) * 2.0 ** random.integers(-9, 9, (32, 1)) for _ in range(2))
        return (starts + slopes * np.arange(8)).reshape(-1).astype(np.float32)
    if random.random() < 0.5:
        return floats(random, 2**bits)
    return (random.integers(-127, 128, 2**bits) * random.uniform(2.0**-9, 2)).astype(np.float32)


def quantize_cache(random: Random) -> Case:
    """Channels of any magnitude, also far larger than others of their group, and a few that are no numbers."""
    x = floats(random, *leading(random), int(random.choice([1, 5, 24, 31, 32, 33, 64, 80, 128])))
    if random.random() < 0.5:
        x[..., 0] *= 300
    if random.random() < 0.2:
        x *= np.float32(10.0 ** random.uniform(-44, 35))
    if random.random() < 0.2:
        x = np.where(random.random(x.shape) < 0.02, random.choice([np.nan, np.inf, -np.inf]), x).astype(np.float32)
    return Case("QuantizeCache", (x,), {"bits": int(random.choice([4, 8]))})


def cached_attention(random: Random) -> Case:
    """Windows, holes and empty rows in the mask; heads that share keys and values; depths of any length; slots."""
    kv_heads, group, batch, tokens = (int(length) for length in random.integers(1, 4, 4))
    depth, value_depth = (int(random.choice([1, 5, 16, 24, 40, 64, 70])) for _ in range(2))
    capacity = int(random.integers(1, 30) if random.random() < 0.5 else random.integers(30, 300))
    length = random.integers(0, capacity + 1, (batch, 1, 1, 1))
    slots = np.arange(capacity)
    mask = (slots < length + np.arange(tokens)[:, None]) & (slots >= length - random.integers(1, capacity + 1))
    if random.random() < 0.5:
        mask = mask & (random.random((batch, kv_heads * group, tokens, capacity)) < 0.7)
    query = random.normal(size=(batch, kv_heads * group, tokens, depth)) * 10.0 ** random.uniform(-2, 1)
    key = random.normal(size=(batch, kv_heads, capacity, depth))
    value = random.normal(size=(batch, kv_heads, capacity, value_depth)) * 10.0 ** random.uniform(-3, 3)
    arrays = (query.astype(np.float32), key.astype(np.float32), value.astype(np.float32), mask)
    attributes: dict[str, Any] = {"scale": scale(random, 1e-2, 1)}
    if random.random() < 0.6:
        bits = int(random.choice([4, 8]))
        arrays = (arrays[0], quantize(arrays[1], 8), quantize(arrays[2], bits), mask)
        attributes |= {"key_bits": 8, "value_bits": bits, "value_depth": value_depth}
    return Case("CachedAttention", arrays, attributes)


def low_rank_matmul(random: Random) -> Case:
    """Ranks around the rows read at once, adapters that change nothing, and more tokens than are multiplied at once."""
    batch, tokens, rank = int(random.integers(0, 5)), int(random.integers(0, 7)), int(random.integers(1, 19))
    depth, width_of_y, adapters = width(random), width(random), int(random.integers(1, 5))
    first, second = floats(random, adapters, rank, depth), floats(random, adapters, rank, width_of_y)
    first[0] = 0
    adapter = random.integers(0, adapters, batch).astype(np.int32)
    factor, scales = (random.normal(size=shape).astype(np.float32) for shape in ((adapters,), (batch, 1, 1)))
    x, y = floats(random, batch, tokens, depth), floats(random, batch, tokens, width_of_y)
    return Case("LowRankMatMul", (x, first, second, factor, adapter, scales, y), {})


def packed_matmul(random: Random) -> Case:
    """Types of weights that are inputs in NumPy; channels and rows around the sizes of panels and tiles."""
    rows, depth, channels = leading(random), width(random), width(random)
    if random.random() < 0.3:
        rows, channels = (int(random.integers(1, 30)),), int(random.choice([15, 16, 17, 63, 64, 65, 130]))
    weight = floats(random, depth, channels)
    if random.random() < 0.5:
        weight = (weight / max(np.abs(weight).max(initial=0), 1e-30)).astype(np.float16)
    if random.random() < 0.5:
        return Case("PackedMatMul", (floats(random, *rows, channels), weight), {"transposed": 1})
    return Case("PackedMatMul", (floats(random, *rows, depth), weight), {})


# Operator -> its float inputs and the largest magnitude of each: no sum of 4096 products then overflows float16.
FLOAT_LIMITS: dict[str, dict[str, float]] = {
    "LutMatMul": {"x": 8, "lut": 1, "values": 1},
    "CsrMatMul": {"x": 8, "values": 1, "y": 8},
    "GroupMatMul": {"x": 8, "scales": 2.0**-8, "levels": 128},
    "LowRankMatMul": {"x": 1, "first": 1, "second": 1, "factor": 0.5, "y": 8},
}


def for_gpu(case: Case) -> Case:
    """The case without inputs that kernels of GPUs do not take."""
    left_out = {name for group in OPS[case.operator].groups if not group.on_gpu for name in group.names}
    kept = [
        None if spec.name in left_out else array
        for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False)
    ]
    while kept[-1] is None:
        kept.pop()
    return Case(case.operator, tuple(kept), case.attributes, case.outputs)


def in_words(case: Case) -> Case:
    """The case with slots of a cache in elements of float32, as in TensorRT's engines."""
    if case.operator == "QuantizeCache":
        return Case(case.operator, case.inputs, {**case.attributes, "element_bits": 32})
    if case.operator == "CachedAttention":
        arrays = (each.view(np.float32) if each.dtype == np.uint8 else each for each in map(np.asarray, case.inputs))
        return Case(case.operator, tuple(arrays), case.attributes)
    return case


def in_float16(case: Case, mixed: bool = False) -> Case:
    """The case with its floats in float16, scaled down; with `mixed` only x and y, which must have the same dtype.

    Groups have at least 32 numbers, as in the kernels of GPUs.
    """
    limits = FLOAT_LIMITS[case.operator]
    if case.attributes.get("group_size", 32) % 32:
        x, packed, *constants = for_gpu(case).inputs
        fewer = (array if array is None or array.ndim == 1 else array[:, ::2] for array in constants)
        attributes = {**case.attributes, "group_size": 2 * case.attributes["group_size"]}
        case = Case(case.operator, (x, packed, *fewer), attributes, case.outputs)
    inputs = []
    for spec, array in zip(OPS[case.operator].inputs, case.inputs, strict=False):
        if array is not None and spec.name in limits:
            wide = "float16" not in spec.dtypes or (mixed and spec.name not in ("x", "y"))
            dtype = np.float32 if wide else np.float16
            array = (array / max(np.abs(array).max(initial=0), 1e-30) * limits[spec.name]).astype(dtype)
        inputs.append(array)
    return Case(case.operator, tuple(inputs), case.attributes, case.outputs)


MAKERS: dict[str, Callable[[Random], Case]] = {
    "Requantize": requantize,
    "IntAdd": int_add,
    "IntGelu": int_gelu,
    "IntSoftmax": int_softmax,
    "IntLayerNorm": int_layer_norm,
    "IntLinear": int_linear,
    "IntMatMul": int_matmul,
    "IntAttention": int_attention,
    "IntRotary": int_rotary,
    "LutMatMul": lut_matmul,
    "CsrMatMul": csr_matmul,
    "GroupMatMul": group_matmul,
    "QuantizeCache": quantize_cache,
    "CachedAttention": cached_attention,
    "LowRankMatMul": low_rank_matmul,
    "PackedMatMul": packed_matmul,
}

ON_GPUS = [name for name in MAKERS if OPS[name].folder in operators()]  # which have CUDA kernels
PLUGGED = [name for name in MAKERS if name not in UNPLUGGED]  # which TensorRT gets


@st.composite
def cases(draw: st.DrawFn, operator: str) -> Case:
    """A random case of an operator."""
    return MAKERS[operator](np.random.default_rng(draw(st.integers(0, 2**32 - 1))))


def longest(operator: str) -> Case:
    """A case with a last axis of 4096, longer than in the random ones."""
    random = np.random.default_rng(0)
    if operator == "IntAttention":
        query, key = int8(random, 1, 3, 32), int8(random, 1, 4096, 32)
        factor = np.array([2**30], np.int32), np.array([38], np.int32)
        return Case(operator, (query, key, int8(random, 1, 4096, 32), *factor, None), {"num_heads": 2, "scale": 1e-3})
    if operator == "IntRotary":
        x = random.integers(-20000, 20000, (1, 3, 4096)).astype(np.int32)
        tables = (random.integers(-(2**14), 2**14, (3, 2048)).astype(np.int32) for _ in range(2))
        return Case(operator, (x, *tables, np.array([2**30], np.int32), np.array([52], np.int32)), {"num_heads": 1})
    if operator == "QuantizeCache":
        return Case(operator, (floats(random, 2, 4096),), {"bits": 8})
    if operator == "CachedAttention":
        arrays = (floats(random, 1, 2, 3, 32), *(floats(random, 1, 1, 4096, 32) for _ in range(2)))
        return Case(operator, (*arrays, random.random((1, 1, 3, 4096)) < 0.5), {"scale": 1e-4})
    if operator == "LowRankMatMul":
        arrays = (floats(random, 2, 3, 4096), floats(random, 2, 5, 4096), floats(random, 2, 5, 4096), floats(random, 2))
        rows = (np.array([1, 0], np.int32), np.ones((2, 1, 1), np.float32), floats(random, 2, 3, 4096))
        return Case(operator, (*arrays, *rows), {})
    if operator == "PackedMatMul":
        return Case(operator, (floats(random, 9, 4096), floats(random, 4096, 70)), {})
    if operator in ("LutMatMul", "GroupMatMul"):
        attributes = {"bits": 3, "K": 4096}
        tables = floats(random, 37, 8) if operator == "LutMatMul" else floats(random, 37, 32)
        attributes |= {} if operator == "LutMatMul" else {"group_size": 128}
        return Case(operator, (floats(random, 2, 4096), indices(random, 37, 4096, 3), tables), attributes)
    if operator == "CsrMatMul":
        columns = np.arange(0, 4096, 2, dtype=np.int32)
        offsets = np.array([0, 0, len(columns)], np.int32)
        x, values = floats(random, 3, 4096), floats(random, len(columns))
        return Case(operator, (x, values, columns, offsets, floats(random, 3, 2)), {})
    if operator in ("IntLinear", "IntMatMul"):
        bias = (np.zeros(5, np.int32),) if operator == "IntLinear" else ()
        return Case(operator, (int8(random, 3, 4096), int8(random, 4096, 5), *bias), {"bits": 32})
    x = random.integers(-20000, 20000, (2, 4096)).astype(np.int32)
    multiplier, shift = factors(random, 4096, True, 2**30)
    ones = np.full(4096, 2**14, np.int32)
    inputs: dict[str, tuple[tuple[Array | None, ...], dict[str, Any]]] = {
        "Requantize": ((x, multiplier, shift), {"bits": 8}),
        "IntAdd": ((x, x[:1], multiplier, multiplier, shift), {"bits": 16}),
        "IntGelu": ((x,), {"scale": 1e-4, "out_scale": 0.05}),
        "IntSoftmax": ((x,), {"scale": 1e-4, "out_scale": 1 / 127}),
        "IntLayerNorm": (
            (x, ones, ones),
            {"scale": 1e-3, "weight_scale": 2.0**-14, "bias_scale": 2.0**-16, "out_scale": 0.03},
        ),
    }
    arrays, attributes = inputs[operator]
    return Case(operator, arrays, attributes)
