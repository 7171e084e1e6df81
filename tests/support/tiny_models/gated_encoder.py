"""A layer of a ModernBERT as a float graph in ONNX text form: rotary embeddings, a window, a gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from observed import DEPTH, HEADS, WIDTH, WORDS

INNER = 12
POSITIONS = """
  n = Shape <start = 1, end = 2> (ids) length = Squeeze(n) p = Range(zero64, length, one64)
  p3 = Unsqueeze(p, axes02) pf = Cast <to = 1> (p3) angle = Mul(pf, frequencies)
  twice = Concat <axis = -1> (angle, angle) cos3 = Cos(twice) sin3 = Sin(twice)
  cosine = Unsqueeze(cos3, axis1) sine = Unsqueeze(sin3, axis1)
"""
WINDOW = """
  keep = Cast <to = 9> (m) keep4 = Unsqueeze(keep, axes) rows = Unsqueeze(p, axis1) columns = Unsqueeze(p, axis0)
  apart = Sub(rows, columns) distance = Abs(apart) near = LessOrEqual(distance, two64) near4 = Unsqueeze(near, axes01)
  both = And(keep4, near4) mask = Where(both, zero, low)
"""
SLICED = """
  q5 = Slice(qkv, i0, i1, axis2) k5 = Slice(qkv, i1, i2, axis2) v5 = Slice(qkv, i2, i3, axis2)
  qr = Squeeze(q5, axis2) kr = Squeeze(k5, axis2) vr = Squeeze(v5, axis2)
"""
SPLIT = """
  q5, k5, v5 = Split <axis = 2, num_outputs = 3> (qkv)
  qr = Squeeze(q5, axis2) kr = Squeeze(k5, axis2) vr = Squeeze(v5, axis2)
"""
GATHERED = """
  qr = Gather <axis = 2> (qkv, n0) kr = Gather <axis = 2> (qkv, n1) vr = Gather <axis = 2> (qkv, n2)
"""


def rotated(x: str) -> str:
    """x·cos + [-x₂, x₁]·sin, of heads [batch, heads, length, depth]."""
    return f"""
  {x}a = Slice({x}t, i0, half, axis3) {x}b = Slice({x}t, half, most, axis3) {x}n = Neg({x}b)
  {x}c = Concat <axis = -1> ({x}n, {x}a) {x}1 = Mul({x}t, cosine) {x}2 = Mul({x}c, sine) {x}y = Add({x}1, {x}2)
"""


ATTENTION = f"""
  qt = Transpose <perm = [0, 2, 1, 3]> (qr) kt = Transpose <perm = [0, 2, 1, 3]> (kr)
  vt = Transpose <perm = [0, 2, 1, 3]> (vr)
{rotated("q")}{rotated("k")}
  kz = Transpose <perm = [0, 1, 3, 2]> (ky) s = MatMul(qy, kz) sm = Mul(s, scale) sa = Add(sm, mask) w = Softmax(sa)
  c = MatMul(w, vt) ct = Transpose <perm = [0, 2, 1, 3]> (c) cr = Reshape(ct, join)
"""
GATED = """
  o = MatMul(cr, wo) r = Add(e, o) rn = LayerNormalization(r, g)
  f = MatMul(rn, wi) fa, fb = Split <axis = -1, num_outputs = 2> (f) a = Gelu(fa) product = Mul(a, fb)
  d = MatMul(product, wd) y = Add(r, d) z = LayerNormalization(y, g)
"""


def gated_encoder(
    parse: Callable[..., ir.Model], cut: str = SLICED, attention: str = ATTENTION, gated: str = GATED
) -> ir.Model:
    """The encoder, with parts of its graph replaced."""
    random = np.random.default_rng(4)

    def weight(*shape: int) -> Any:
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    weights = {
        "words": random.normal(size=(WORDS, WIDTH)).astype(np.float32),
        "wqkv": weight(WIDTH, 3 * WIDTH),
        "bqkv": weight(3 * WIDTH),
        "wo": weight(WIDTH, WIDTH),
        "wi": weight(WIDTH, 2 * INNER),
        "wd": weight(INNER, WIDTH),
        "g": np.linspace(0.5, 1.5, WIDTH, dtype=np.float32),
        "frequencies": (100.0 ** -(np.arange(DEPTH // 2) * 2 / DEPTH)).astype(np.float32),
        "scale": np.float32(0.5),
        "zero": np.float32(0),
        "low": np.float32(-3e38),
        "zero64": np.int64(0),
        "one64": np.int64(1),
        "two64": np.int64(2),
        "heads": np.array([0, 0, 3, HEADS, DEPTH]),
        "join": np.array([0, 0, WIDTH]),
        "half": np.array([DEPTH // 2]),
        "most": np.array([2**63 - 1]),
        "axes": np.array([1, 2]),
        "axes01": np.array([0, 1]),
        "axes02": np.array([0, 2]),
        **{f"axis{axis}": np.array([axis]) for axis in range(4)},
        **{f"i{index}": np.array([index]) for index in range(4)},
        **{f"n{index}": np.int64(index) for index in range(3)},
    }
    text = (
        "(int64[batch, sequence] ids, int64[batch, sequence] m) => (float[batch, sequence, 8] z) {\n"
        "  x = Gather(words, ids) e = LayerNormalization(x, g)\n"
        f"{POSITIONS}{WINDOW}  h = MatMul(e, wqkv) hb = Add(h, bqkv) qkv = Reshape(hb, heads)\n"
        f"{cut}{attention}{gated}}}"
    )
    used = {name: array for name, array in weights.items() if f"{name})" in text or f"{name}," in text}
    return parse(text, used)
