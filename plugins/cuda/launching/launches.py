"""The launch of a node's CUDA kernel, from the `launch.py` in its operator's folder, and which folders have kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from intaglio.errors import EngineError
from intaglio.plugins.cuda.launching.geometry import PLUGINS, Launch, Tensor


def launch(folder: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> Launch:
    """The launch of an operator's kernel, by the operator's folder, for compute capability `sm`.

    None stands for an input that the node leaves out. Raises `EngineError` for an operator without a kernel.
    """
    if folder not in operators():
        raise EngineError(f"{folder} has no CUDA kernel. Use the graph of the bundle, which has standard operators.")
    made: Launch = _module(folder).launch(inputs, attributes, sm)
    return made


def alternatives(folder: str, inputs: Sequence[Tensor | None], attributes: Mapping[str, Any], sm: int) -> list[Launch]:
    """Other launches that compute the same as `launch`, which the GPU may run faster; none for most operators."""
    return list(_module(folder).alternatives(inputs, attributes, sm)) if has_alternatives(folder) else []


def has_alternatives(folder: str) -> bool:
    """Whether nodes of an operator, by its folder, may have other launches."""
    return hasattr(_module(folder), "alternatives")


def _module(folder: str) -> Any:
    return import_module(f"intaglio.plugins.{folder}.launch")


def operators() -> list[str]:
    """The folders of the operators that have a CUDA kernel, sorted."""
    return sorted(path.parent.name for path in PLUGINS.glob("*/kernel.cu"))


def kernel_folders() -> list[str]:
    """The folders below `plugins` with CUDA kernels: those of operators, sorted, and of what runs beside engines."""
    beside = sorted(path.parent.name for path in (PLUGINS / "native").glob("*/kernel.cu"))
    return [*operators(), *(f"native/{name}" for name in beside)]
