"""Open an engine for any target of the table."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.errors import UsageError
from intaglio.runtime.adapters.adapter import MERGE
from intaglio.runtime.adapters.adapters import Adapters
from intaglio.runtime.engines.engine import Engine, Opening
from intaglio.storage.fetch import local_bundle
from intaglio.targets import DEFAULT, find_target


def open_engine(
    path: str | Path | Bundle,
    target: str = DEFAULT,
    threads: int | None = None,
    spinning: bool = True,
    outputs: Collection[str] | None = None,
    graph: str = MODEL,
    adapters: Adapters | None = None,
    cache_bits: int | None = None,
) -> Engine:
    """Open a bundle, or any .onnx file; `graph` is the bundle's ONNX file to run, `adapters` are added to it.

    `target`: one of `intaglio.targets`; a TensorRT target runs the engine that `intaglio build` added to the bundle for
    this machine's GPU. `threads`, `spinning` and `outputs` apply to ONNX Runtime, see `OnnxRuntimeEngine`, and so does
    `cache_bits`: other engines were built with theirs, and others are refused.
    """
    chosen = find_target(target)
    if adapters is not None and not chosen.runs_files:
        raise UsageError(f"--adapter: target {target} runs built engines only. Use --target ort-cpu. {MERGE}")
    if not isinstance(path, Bundle):
        path = local_bundle(path)
        if path.suffix != ".onnx" or path.is_dir():
            path = Bundle.open(path)
        elif not chosen.runs_files:
            raise UsageError(f"{path}: target {target} runs only bundles. Create one with: intaglio export {path}")
    options = Opening(threads, spinning, outputs, graph, adapters, cache_bits)
    opened: Engine = function_at(chosen.opens)(path, chosen, options)
    return opened


def function_at(place: str) -> Any:
    """The function that the table names as "module:function"; its module is imported on first use."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"intaglio.runtime.engines.{module}"), name)
