"""Checkpoint -> ONNX bundle: one file per model family, one place that traces."""

from intaglio.exporters.export import Exported, export
from intaglio.exporters.source import load_module

__all__ = ["Exported", "export", "load_module"]
