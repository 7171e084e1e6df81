"""The integer functions and their references, both in real numbers; and the test rows for softmax.

Everything integer here is `intaglio.plugins`' own: the functions of `integer_math.py`, or a whole operator.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.encoding.operator_runs import Array, Run
from intaglio.plugins import integer_math

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]

INPUTS = np.arange(-32767, 32768)  # every 16-bit value
INPUT_SCALE = float(np.float32(4 / 32767))  # so they reach from -4 to 4
GELU_SCALE = float(np.float32(4 / 127))  # of the 8-bit result
SCORE_SCALE = 2.0**-9  # of one unit of query·key below
SOFTMAX_SCALE = float(np.float32(1 / 127))

_erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x: Floats) -> Floats:
    """GELU, I-BERT equation 2.4."""
    exact: Floats = x * (1 + _erf(x / math.sqrt(2))) / 2
    return exact


def sigmoid_gelu(x: Floats) -> Floats:
    """x·σ(1.702·x), I-BERT equation 2.5."""
    return x / (1 + np.exp(-1.702 * x))


def h_gelu(x: Floats) -> Floats:
    """GELU by a hard sigmoid, I-BERT equation 2.6."""
    return x * np.clip(1.702 * x + 3, 0, 6) / 6


def square_gelu(x: Floats) -> Floats:
    """GELU by I-BERT's polynomial in real numbers, equations 2.8 and 2.9."""
    reached = np.minimum(np.abs(x) / math.sqrt(2), 1.769)
    return x * (1 + np.sign(x) * (-0.2888 * (reached - 1.769) ** 2 + 1)) / 2


def i_gelu(inputs: Integers) -> Floats:
    """i-GELU of 16-bit `inputs` at INPUT_SCALE, as every kernel computes it before its last step."""
    constants = integer_math.gelu_constants(INPUT_SCALE, GELU_SCALE)
    inner = integer_math.requantize(inputs, constants.multiplier, constants.shift)
    return integer_math.gelu(integer_math.clip(inner, integer_math.INT16), constants) * constants.inner_scale


def i_exp(distances: Integers, scale: float = INPUT_SCALE) -> Floats:
    """i-exp of -distances·scale."""
    return integer_math.exp(distances, integer_math.exp_constants(scale)) / 2**15


def real_i_exp(x: Floats) -> Floats:
    """exp(x) for x <= 0 by I-BERT's polynomial in real numbers, equations 2.12 and 2.13."""
    octaves = np.floor(-x / math.log(2))
    remainder = x + octaves * math.log(2)
    polynomial = integer_math.EXP_A * (remainder + integer_math.EXP_B) ** 2 + integer_math.EXP_C
    return np.ldexp(polynomial, -octaves.astype(np.int64))


def softmax(scores: Integers) -> Floats:
    """Exact softmax of scores at SCORE_SCALE, over the last axis."""
    exponentials = np.exp((scores - scores.max(axis=-1, keepdims=True)) * SCORE_SCALE)
    probabilities: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def rows(length: int) -> dict[str, Integers]:
    """Scores [length] at SCORE_SCALE by the name of the special case, all within 16 bits."""
    place = np.arange(length)
    random = np.random.default_rng(length)
    real = {
        "uniform": np.zeros(length),
        "one-hot": np.where(place == length // 2, 0.0, -16.0),
        "long tail": np.where(place == 0, 0.0, -math.log(max(length - 1, 1))),  # the first one as heavy as all others
        "1/rank": -np.log(place + 1.0),
        "1/rank²": -2 * np.log(place + 1.0),
        "random, σ = 1": random.normal(0, 1, length),
        "random, σ = 3": random.normal(0, 3, length),
    }
    return {name: np.rint(scores / SCORE_SCALE).astype(np.int64) for name, scores in real.items()}


def edge_row(length: int) -> Integers:
    """The worst case of 15-bit exponentials: all entries but one just round to 0."""
    return np.where(np.arange(length) == 0, 0, -math.ceil(16 * math.log(2) / SCORE_SCALE))


def attention_mass(run: Run, scores: Integers) -> Floats:
    """The sum of IntAttention's weights, resolved to 1/254: its output if every value is 127. Scores [rows, length]."""
    count, length = scores.shape
    high = np.clip(np.rint(scores / 127), -128, 127).astype(np.int64)
    key = np.stack([high, scores - 127 * high], axis=-1).astype(np.int8)
    query = np.broadcast_to(np.array([127, 1], np.int8), (count, 1, 2)).copy()
    value = np.full((count, length, 2), 127, np.int8)
    factors = integer_math.dyadic(2.0**-integer_math.AVERAGE_FRACTION)
    multiplier, shift = (np.array([factor], np.int32) for factor in factors)
    attributes = {"num_heads": 1, "scale": SCORE_SCALE}
    context = run("IntAttention", [query, key, value, multiplier, shift], attributes)[0]
    return context[:, 0, 0] / 127


def softmax_weights(run: Run, scores: Integers) -> Floats:
    """The 8-bit weights of IntSoftmax; scores [rows, length]."""
    attributes = {"scale": SCORE_SCALE, "out_scale": SOFTMAX_SCALE}
    return run("IntSoftmax", [scores.astype(np.int32)], attributes)[0] / 127


def attention_weights(scores: Integers) -> Floats:
    """The weights of IntAttention: exponentials over their sum. Scores [rows, length]."""
    p = integer_math.masked_exp(scores, None, integer_math.exp_constants(SCORE_SCALE))
    weights: Floats = p / p.sum(axis=-1, keepdims=True)
    return weights


def layer_norm(x: Array, weight: Floats, bias: Floats) -> Floats:
    """LayerNorm over the last axis in 64-bit floating point, without epsilon."""
    deviation = x - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    return deviation / np.sqrt((deviation**2).mean(axis=-1, keepdims=True)) * weight + bias


def whole_number_layer_norm(x: Array, weight: Floats, bias: Floats) -> Floats:
    """The same with mean and root rounded to integers, as in I-BERT's equation 2.15 and algorithm 4."""
    deviation = x - np.rint(x.mean(axis=-1, keepdims=True, dtype=np.float64))
    root = np.floor(np.sqrt((deviation**2).mean(axis=-1, keepdims=True)))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(deviation / root, nan=np.inf) * weight + bias
