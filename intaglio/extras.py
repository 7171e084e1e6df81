"""Loading the libraries of optional extras when they are needed, and saying which extra brings them."""

from __future__ import annotations

import importlib
import os
from typing import Any

from intaglio.errors import MissingExtraError

EXTRA_OF = {
    "cuda.bindings": "gpu",
    "huggingface_hub": "export",
    "onnx_graphsurgeon": "surgeon",
    "onnxruntime": "cpu",
    "onnxscript": "export",
    "rouge_score": "quality",
    "sacrebleu": "quality",
    "tensorrt": "gpu",
    "tensorrt_rtx": "rtx",
    "torch": "export",
    "transformers": "export",
}


def load(module: str) -> Any:
    """Import `module` and return it, or raise `MissingExtraError` with the command that installs it.

    Before torch is, OMP_WAIT_POLICY is set, unless it is already: its threads then sleep while they wait for each
    other. In a loop they take the processor from those that they wait for, where anything else runs on the machine.
    """
    if module == "torch":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = next(extra for name, extra in EXTRA_OF.items() if module == name or module.startswith(name + "."))
        raise MissingExtraError(
            f"{module} cannot be imported ({error}). Install it with: pip install 'intaglio[{extra}]'"
        ) from error
