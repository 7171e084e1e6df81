"""The execution providers of ONNX Runtime that targets run on, and sessions that surely run on them."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from intaglio.errors import EngineError, one_line
from intaglio.extras import load
from intaglio.targets import TARGETS

# Target -> execution providers, in order of preference. The fallback comes after the first.
PROVIDERS = {
    "ort-cpu": ["CPUExecutionProvider"],
    "ort-cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
}

# Target -> optimisations of ONNX Runtime that make it slower: on CPUs, its SkipLayerNormalization takes six times as
# long as the Add and LayerNormalization that it replaces (375 x 256: 475 and 73 microseconds, EPYC, one thread, 1.31).
SLOWER = {"ort-cpu": ["SkipLayerNormFusion"], "ort-cuda": []}

CHANGING_WEIGHTS = ("ConstantFolding", "MatmulTransposeFusion")  # optimisations


def missing_provider(target: str) -> str | None:
    """The error message if the installed ONNX Runtime lacks the target's provider, else None."""
    provider, available = PROVIDERS[target][0], load("onnxruntime").get_available_providers()
    if provider in available:
        return None
    return (
        f"target {target}: needs {provider}, this ONNX Runtime has {', '.join(available)}. Install it with: "
        f"pip install 'intaglio[{TARGETS[target].extra}]' (instead of onnxruntime), or use --target ort-cpu."
    )


def open_session(
    name: object,
    model: str | bytes,
    options: Any,
    target: str,
    settings: Mapping[str, str] | None = None,
    keeps_weights: bool = False,
) -> Any:
    """A session of ONNX Runtime for a file or its content, on the target's provider with `settings`.

    `keeps_weights`: those that the graph widens or transposes are unchanged. Raises `EngineError` for a model that ONNX
    Runtime refuses, which it names `name`; and if the provider does not start, where ONNX Runtime would run everything
    on the CPU and not say so.
    """
    onnxruntime = load("onnxruntime")
    first, *others = PROVIDERS[target]
    if TARGETS[target].needs_gpu:
        _load_cuda()
    try:
        session = onnxruntime.InferenceSession(
            model,
            options,
            providers=[(first, dict(settings or {})), *others],
            disabled_optimizers=[*SLOWER[target], *(CHANGING_WEIGHTS if keeps_weights else ())],
            enable_fallback=0,  # to the CPU, after any error
        )
    except Exception as error:  # the library's exceptions have no other common base
        raise EngineError(f"{name}: ONNX Runtime cannot open it: {one_line(error)}") from error
    if first not in session.get_providers():
        raise EngineError(f"target {target}: {first} did not start: {_reason()}, or use --target ort-cpu.")
    return session


@cache
def _load_cuda() -> None:
    """Load CUDA's libraries from packages, where the system's loader does not look."""
    with redirect_stdout(io.StringIO()):  # it prints what it does not find, which may be there under another name
        load("onnxruntime").preload_dlls()


def _reason() -> str:
    """Why the CUDA provider does not start, and what to do."""
    library = Path(load("onnxruntime").__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return f"{one_line(error)}. Install CUDA's libraries with: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    return "it does not say why. Check the GPU with nvidia-smi"
