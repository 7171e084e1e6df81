"""Engines (ONNX Runtime, TensorRT), building them, and running a bundle on text."""

from intaglio.runtime.build import build
from intaglio.runtime.engine import Engine, open_engine
from intaglio.runtime.run import run

__all__ = ["Engine", "build", "open_engine", "run"]
