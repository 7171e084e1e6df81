"""The two sides of a comparison: a bundle, and the target that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from intaglio.bundle.bundle import MANIFEST, Bundle, Manifest
from intaglio.exporters import load_module, module_options
from intaglio.exporters.checkpoints.checkpoint import CONFIG
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.engines.opening import open_engine
from intaglio.targets import DEFAULT, TARGETS
from intaglio.validation.comparison.graph_values import expose_values, graph_values
from intaglio.validation.comparison.runners import EngineRunner, PyTorchRunner, ReferenceRunner, Runner

PYTORCH = "pytorch"  # the checkpoint that the bundle was made from
REFERENCE = "reference"  # onnx.reference
BASELINE = DEFAULT  # the target for the bundle to compare with


def is_checkpoint(folder: Path) -> bool:
    """Whether this is a checkpoint's folder, and no bundle."""
    return (folder / CONFIG).is_file() and not (folder / MANIFEST).is_file()


@dataclass(frozen=True)
class ComparedModel:
    """A bundle run by `kind`: one of the engines' targets, "pytorch" or "reference"."""

    bundle: Bundle
    kind: str
    name: str
    download: bool = False  # whether the source checkpoint may be downloaded
    checkpoint: Path | None = None  # folder of the source checkpoint; None: where it was exported from

    def runner(self, layers: Sequence[str] = ()) -> Runner:
        """A runner that removes padding and also returns the graph values `layers`."""
        if self.kind == PYTORCH:
            manifest = self.bundle.manifest
            paths = {path: value for path, value in manifest.layers.items() if value in layers}
            return PyTorchRunner(
                lambda: self._module,
                manifest.inputs,
                manifest.outputs,
                self.name,
                layers=paths,
                drop_padding=True,
            )
        if self.kind == REFERENCE:
            return ReferenceRunner(self.bundle.model_path, self.name, layers, drop_padding=True)
        if layers:
            return EngineRunner(lambda: self._exposing(layers), self.name, drop_padding=True)
        return EngineRunner(lambda: open_engine(self.bundle, self.kind), self.name, drop_padding=True)

    def open_runner(self, engines: ExitStack) -> Runner:
        """As `runner`, with an engine that is open until `engines` closes, however often the runner is activated."""
        if self.kind in (PYTORCH, REFERENCE):
            return self.runner()
        engine = engines.enter_context(open_engine(self.bundle, self.kind))
        return EngineRunner(lambda: nullcontext(engine), self.name, drop_padding=True)

    @cached_property
    def _module(self) -> Any:
        """The checkpoint, loaded once for all runners. Raises `SourceError` if it is missing or changed."""
        manifest = self.bundle.manifest
        source = manifest.source
        if self.checkpoint is not None:
            source = msgspec.structs.replace(source, kind="local", location=str(self.checkpoint.absolute()))
        return load_module(source, self.download, **module_options(manifest))

    @contextmanager
    def _exposing(self, layers: Sequence[str]) -> Iterator[Engine]:
        with expose_values(self.bundle.model_path, layers) as path, OnnxRuntimeEngine(path, self.kind) as engine:
            yield engine

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the graph; None for the source checkpoint, which no pass has changed."""
        return None if self.kind == PYTORCH else self.bundle.manifest

    def values(self) -> list[str]:
        """The graph values that `runner` can return, in execution order; none for a built engine."""
        if self.kind == PYTORCH:
            return list(dict.fromkeys(self.bundle.manifest.layers.values()))
        if self.kind == REFERENCE or TARGETS[self.kind].runs_files:
            return graph_values(self.bundle.model_path)
        return []

    def label(self, value: str) -> str:
        """The innermost module path that returns a graph value, or else the value's name."""
        return max(
            (path for path, name in self.bundle.manifest.layers.items() if name == value), key=len, default=value
        )
