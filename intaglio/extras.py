"""Load the libraries of optional extras on demand, and name the extra that installs them."""

from __future__ import annotations

import importlib
import os
from typing import Any

from intaglio import rtx_parser
from intaglio.errors import MissingExtraError

EXTRA_OF = {
    "aiohttp": "bench",
    "cuda.bindings": "gpu",
    "cuda.pathfinder": "gpu",
    "httptools": "serve",
    "httpx2": "agents",
    "fsspec": "storage",
    "huggingface_hub": "export",
    "jiwer": "quality",
    "jsonschema": "agents",
    "llguidance": "grammar",
    "mcp": "agents",
    "onnx_graphsurgeon": "surgeon",
    "onnxruntime": "cpu",
    "onnxscript": "export",
    "ray": "ray",
    "rouge_score": "quality",
    "s3fs": "storage",
    "sacrebleu": "quality",
    "soundfile": "speech",
    "soxr": "speech",
    "tensorrt": "gpu",
    "tensorrt_rtx": "rtx",
    "openai": "agents",
    "PIL": "vision",
    "prometheus_client": "serve",
    "python_multipart": "serve",
    "sse_starlette": "serve",
    "starlette": "serve",
    "torch": "export",
    "transformers": "export",
    "uvicorn": "serve",
}

# What each extra is for, as docs/reference.md has it.
PURPOSE = {
    "cpu": "running and checking on a CPU",
    "export": "tracing checkpoints, validating against PyTorch",
    "rtx": "compiling for GPUs, with or without one present",
    "gpu": "deploying on a GPU (instead of cpu)",
    "serve": "serving bundles over HTTP",
    "agents": "agents, and their tools",
    "bench": "intaglio bench of a server",
    "quality": "scoring texts: tune-decoding",
    "speech": "reading recordings",
    "vision": "reading images",
    "storage": "bundles at addresses such as s3://models/llama",
    "surgeon": "recipes with a function of your own over it",
    "grammar": "constrained output; serve and agents include it",
    "peers": "peers of the benchmarks",
    "docs": "make docs and make docs-test",
    "ray": "compressing and serving on a cluster of machines",
    "dev": "working on Intaglio",
}


def load(module: str) -> Any:
    """Import `module` and return it, or raise `MissingExtraError` with the command that installs it.

    Before importing torch, OMP_WAIT_POLICY is set if it is not set already, so that its threads sleep while they wait
    for each other. Busy waiting would take processor time from the threads they wait for when the machine is loaded.
    For TensorRT-RTX, see `rtx_parser`.
    """
    if module == "torch":
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if module == "tensorrt_rtx":
        rtx_parser.takes_plugins()
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = next(extra for name, extra in EXTRA_OF.items() if module == name or module.startswith(name + "."))
        raise MissingExtraError(
            f"{module} cannot be imported ({error}). Install it with: pip install 'intaglio[{extra}]'"
        ) from error
