"""Check whether ONNX Runtime opens a graph, in little memory: weights are not read.

A graph can be valid by ONNX's checker and still be rejected: by the runtime's type inference, or for a missing kernel.
Graphs are opened once after they are written.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from intaglio.bundle.model_file import outline
from intaglio.errors import one_line
from intaglio.extras import load
from intaglio.plugins import DOMAIN, OPS, custom_operators
from intaglio.runtime.engines.onnx_nodes import all_nodes
from intaglio.runtime.engines.onnxruntime.custom_operators import MissingKernels, runnable
from intaglio.runtime.engines.onnxruntime.engine import EXTERNAL_DATA_FOLDER

if TYPE_CHECKING:
    import onnx

FOLDED = 1 << 20  # bytes of the largest constant that is folded; folding casts of weights would double their memory
DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft", DOMAIN}


class NotOpened(UserWarning):
    """ONNX Runtime's CPU provider cannot run a written graph."""


class Unopenable(NamedTuple):
    """Why ONNX Runtime does not open a graph; `lacks_kernel`: it is valid, but the CPU provider cannot run it."""

    reason: str
    lacks_kernel: bool


def unopenable(path: Path) -> Unopenable | None:
    """Open the ONNX file `path` in ONNX Runtime, with our operators; return why it cannot be opened.

    None as well if that is unknown: without ONNX Runtime, or for a graph with operators of another library or of a
    newer version of ours.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    model = outline(path)
    ours = custom_operators(all_nodes(model.graph.node))
    if not _domains(model) <= DOMAINS or not set(ours) <= set(OPS):
        return None
    onnxruntime = load("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are returned
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # folds conditions of If
    for name, value in (
        ("session.disable_prepacking", "1"),
        ("optimization.constant_folding_max_output_size_in_bytes", str(FOLDED)),
    ):
        options.add_session_config_entry(name, value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingKernels)
            with runnable(path, options, ours) as file:
                options.add_session_config_entry(EXTERNAL_DATA_FOLDER, str(file.parent))
                content = outline(file, located=True).SerializeToString()
                onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's exceptions have no other common base
        reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", one_line(error, 300)).rstrip(".")
        return Unopenable(reason, type(error).__name__ == "NotImplemented")
    return None


def _domains(model: onnx.ModelProto) -> set[str]:
    """The domains of all nodes, except those of the model's own functions."""
    own = {(function.domain, function.name) for function in model.functions}
    graphs = [model.graph.node, *(function.node for function in model.functions)]
    return {node.domain for nodes in graphs for node in all_nodes(nodes) if (node.domain, node.op_type) not in own}
