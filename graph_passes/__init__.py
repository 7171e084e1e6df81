"""ONNX -> ONNX: one pass per file, and recipes, the ordered lists of passes."""

from intaglio.graph_passes.compress import compress

__all__ = ["compress"]
