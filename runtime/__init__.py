"""Engines (ONNX Runtime, TensorRT): build them, run a bundle on text, and generate text."""

from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.generation.generate import TextGenerator, generate
from intaglio.runtime.run import run
from intaglio.runtime.similarity import similarity

__all__ = ["Engine", "TextGenerator", "build", "generate", "open_engine", "run", "similarity"]
