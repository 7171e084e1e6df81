"""Float graphs with the statistics of calibration, from inputs given by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from intaglio.graph_passes.calibration.activation_statistics import KEY, Statistics
from intaglio.graph_passes.graphs import infer_shapes
from intaglio.graph_passes.integer.equalize import Equalize
from intaglio.graph_passes.pass_table import PASSES
from intaglio.graph_passes.recipes.recipes import LOWERING
from intaglio.plugins.inlining import inline

Array = npt.NDArray[Any]

HEADS, DEPTH, WIDTH, WORDS = 2, 4, 8, 30

ATTENTION = """
  q = MatMul(e, wq) qb = Add(q, bq) qr = Reshape(qb, split) qt = Transpose <perm = [0, 2, 1, 3]> (qr)
  k = MatMul(e, wk) kr = Reshape(k, split) kt = Transpose <perm = [0, 2, 3, 1]> (kr)
  v = MatMul(e, wv) vr = Reshape(v, split) vt = Transpose <perm = [0, 2, 1, 3]> (vr)
  s = MatMul(qt, kt) sm = Mul(s, half) sa = Add(sm, mask) p = Softmax(sa)
  c = MatMul(p, vt) ct = Transpose <perm = [0, 2, 1, 3]> (c) cr = Reshape(ct, join)
"""
WHERE = "  keep = Cast <to = 9> (m) keep4 = Unsqueeze(keep, axes) mask = Where(keep4, zero, low)\n"
OUTPUT = """
  o = MatMul(cr, wo) ob = Add(o, bo) r = Add(ob, e) n = LayerNormalization(r, g, b)
  f = MatMul(n, wf) fb = Add(f, bf) a = Gelu(fb) d = MatMul(a, wd) dr = Add(d, n) y = LayerNormalization(dr, g, b)
"""


def values(model: ir.Model, names: list[str], feeds: dict[str, Array]) -> list[Array]:
    """The named values, by onnx.reference."""
    proto = ir.to_proto(model)
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return ReferenceEvaluator(proto).run(names, feeds)


def observe(model: ir.Model, feeds: dict[str, Array]) -> ir.Model:
    """`model` with statistics of every floating-point value that its nodes compute for `feeds`."""
    infer_shapes(model)
    onnx_values = [value for node in model.graph for value in node.outputs if value.dtype == ir.DataType.FLOAT]
    for value, array in zip(onnx_values, values(model, [str(v.name) for v in onnx_values], feeds), strict=True):
        seen = Statistics()
        seen.add(np.asarray(array, np.float32), channels=array.ndim > 0)
        value.meta[KEY] = seen
    return model


def lower(model: ir.Model, feeds: dict[str, Array], equalize: bool = False) -> dict[str, list[str]]:
    """Make `model` integer in place; return the reasons of each pass."""
    observe(model, feeds)
    if equalize:
        Equalize()(model)
        observe(model, feeds)
    return {name: PASSES[name]()(model)[1].reasons for name in map(str, LOWERING)}


def run_integer(model: ir.Model, feeds: dict[str, Array]) -> list[Array]:
    """The outputs of a graph with custom operators, which are inlined, in ONNX Runtime."""
    import onnxruntime

    copy = ir.from_proto(ir.to_proto(model))
    inline(copy)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        ir.to_proto(copy).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)
