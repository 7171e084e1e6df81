"""A session of ONNX Runtime for one case of an operator, with the CPU kernels."""

from __future__ import annotations

from typing import Any

from intaglio.plugins import ort
from intaglio.plugins.kernel_check.case import Case
from intaglio.plugins.kernel_check.node_model import node_model


def operator_session(case: Case, constants: bool = False) -> Any:
    """`constants`: as in `node_model`."""
    import onnx_ir as ir
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a test may have one processor
    assert ort.register(options)
    model = ir.to_proto(node_model(case, constants)).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
