"""Intaglio takes a transformer from its checkpoint to a compressed, validated engine, and runs it.

This package holds what every stage shares; the stages are `intaglio.exporters`, `intaglio.graph_passes`,
`intaglio.plugins`, `intaglio.runtime` and `intaglio.validate`. Importing any of them stays light: torch,
ONNX Runtime and TensorRT are loaded when a function needs them.
"""

__version__ = "0.1.0"
