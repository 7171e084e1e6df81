"""Let torch trace equal modules once: most tests that export differ in weights or settings that traces ignore.

A trace takes torch seconds, mostly independent of the size of the graph. Modules are equal if everything that tracing
reads is: their structure, the attributes of all submodules, the shapes and types of parameters, the values of
buffers, and the names and axes of inputs and outputs. Our code processes a copy of the trace each time.
"""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace
from typing import Any

PLAIN = (bool, int, float, str, bytes, type(None), tuple, list, set, frozenset)


def identity(module: Any, arguments: Any, options: dict[str, Any]) -> str:
    """Everything that a trace of `module` with these arguments depends on, as one text."""
    import torch
    import transformers

    examples = [(tuple(each.shape), str(each.dtype)) for each in arguments[0]]
    parts = [repr(module), repr(examples)]
    parts += [f"{name}={value!r}" for name, value in sorted(options.items())]
    for name, part in module.named_modules():
        parts.append(f"{name}: {type(part).__module__}.{type(part).__qualname__} {part.training}")
        for key, value in sorted(vars(part).items()):
            if isinstance(value, (*PLAIN, torch.dtype)):
                parts.append(f"{key}={value!r}")
            elif isinstance(value, transformers.PreTrainedConfig):
                parts.append(repr(value.to_dict() | {"_name_or_path": ""}))
    first: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(parameter), name)  # tied parameters are one in the graph
        parts.append(f"{name}={owner} {tuple(parameter.shape)} {parameter.dtype}")
    for name, buffer in module.named_buffers():
        digest = hashlib.sha256(buffer.detach().contiguous().numpy().tobytes()).hexdigest()
        parts.append(f"{name} {tuple(buffer.shape)} {buffer.dtype} {digest}")
    return "\n".join(parts)


def trace_once() -> None:
    """Replace `torch.onnx.export` if torch is loaded and not replaced before."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is not None and not isinstance(onnx.export, TracedOnce):
        onnx.export = TracedOnce(onnx.export)  # type: ignore[attr-defined]


class TracedOnce:
    """Stands in for `torch.onnx.export`: calls it for the first of equal modules, and returns copies of its graph."""

    def __init__(self, export: Any):
        self._export = export
        self._models: dict[str, Any] = {}

    def __call__(self, module: Any, *arguments: Any, **options: Any) -> Any:
        """Like `torch.onnx.export`."""
        if len(arguments) > 1:  # a file to write
            return self._export(module, *arguments, **options)
        key = identity(module, arguments, options)
        if key not in self._models:
            self._models[key] = self._export(module, *arguments, **options).model
        return SimpleNamespace(model=self._models[key].clone())
