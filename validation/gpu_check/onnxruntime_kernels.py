"""An operator's kernel in ONNX Runtime's CUDA provider, for `gpu-check`."""

from __future__ import annotations

from intaglio.errors import EngineError, MissingExtraError, one_line
from intaglio.extras import load
from intaglio.plugins import ort
from intaglio.plugins.kernel_check.case import Array, Case
from intaglio.plugins.kernel_check.node_model import feeds, node_model
from intaglio.plugins.ort.cuda_nodes import use_cuda_kernels
from intaglio.runtime.engines.onnxruntime.provider import missing_provider, open_session

TARGET = "ort-cuda"


def run(case: Case, sm: int) -> tuple[str, list[Array]]:
    """Run the case's node on this machine's GPU, which is of `sm`; return the kernel's name and the outputs.

    All inputs but the first are constants, as in a model. Raises `MissingExtraError` if ONNX Runtime has no CUDA
    provider or intaglio no compiled library, `EngineError` if the kernel does not run.
    """
    import onnx_ir as ir

    onnxruntime = load("onnxruntime")
    if missing := missing_provider(TARGET):
        raise MissingExtraError(missing)
    model = node_model(case, constants=True)
    for reason in use_cuda_kernels(model, sm).values():
        raise EngineError(reason)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    if not ort.register(options):
        raise MissingExtraError("intaglio was installed without a C++ compiler. Install g++, then intaglio again.")
    session = open_session(case, ir.to_proto(model).SerializeToString(), options, TARGET)
    try:
        outputs: list[Array] = session.run(None, feeds(case, constants=True))
    except Exception as error:  # the library's exceptions have no other common base
        raise EngineError(f"ONNX Runtime failed: {one_line(error)}") from error
    return model.graph.node(0).attributes["kernel"].as_string(), outputs
