"""Opening an engine: whatever target of the table runs it."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.bundle import MODEL, Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.engine import Engine
from intaglio.targets import DEFAULT, find_target


@dataclass(frozen=True)
class Opening:
    """How to open a graph. Each target heeds what it has a use for."""

    threads: int | None = None  # of the processor
    spinning: bool = True  # idle worker threads wait in a loop
    outputs: Collection[str] | None = None  # those that are wanted; None: all
    graph: str = MODEL  # the bundle's ONNX file that is run


def open_engine(
    path: str | Path | Bundle,
    target: str = DEFAULT,
    threads: int | None = None,
    spinning: bool = True,
    outputs: Collection[str] | None = None,
    graph: str = MODEL,
) -> Engine:
    """Open a bundle, or any .onnx file, for running; `graph` is the bundle's ONNX file that is run.

    `target`: one of `intaglio.targets`; a TensorRT target runs an engine that `intaglio build` put into the bundle for
    this machine's GPU. `threads`, `spinning` and `outputs` are for ONNX Runtime, see `OnnxRuntimeEngine`.
    """
    chosen = find_target(target)
    if not isinstance(path, Bundle):
        path = Path(path)
        if path.suffix != ".onnx" or path.is_dir():
            path = Bundle.open(path)
        elif not chosen.runs_files:
            raise UsageError(f"{path}: target {target} runs engines of a bundle. Make one with: intaglio export {path}")
    opened: Engine = function_at(chosen.opens)(path, chosen, Opening(threads, spinning, outputs, graph))
    return opened


def function_at(place: str) -> Any:
    """The function that the table names as "module:function"; its module is imported when it is first needed."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"intaglio.runtime.engines.{module}"), name)
