"""Operators of ours that a graph gets when ONNX Runtime opens it on a CPU, in place of standard ones that are slower.

The graph of a bundle keeps the standard operators, for other runtimes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from intaglio.plugins import ort as kernels
from intaglio.plugins.registry import DOMAIN, OF_SESSIONS, VERSION
from intaglio.targets import Target

if TYPE_CHECKING:
    import onnx


def can_put_in(target: Target) -> bool:
    """Whether `target` runs on the CPU, and the compiled library has the kernels."""
    return not target.needs_gpu and {*OF_SESSIONS} <= {*kernels.operators()}


def import_our_domain(model: onnx.ModelProto) -> None:
    """Let the model have nodes of our domain."""
    if DOMAIN not in {opset.domain for opset in model.opset_import}:
        opset = model.opset_import.add()
        opset.domain, opset.version = DOMAIN, VERSION
