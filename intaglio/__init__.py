"""Intaglio takes a transformer from its checkpoint to a compressed, validated engine, and runs it.

This package holds what every stage shares; the stages are `intaglio.exporters`, `intaglio.graph_passes`,
`intaglio.plugins`, `intaglio.runtime`, `intaglio.training` and `intaglio.validate`. Importing any of them stays light:
torch, ONNX Runtime and TensorRT are loaded when a function needs them.
"""

from pathlib import Path

__version__ = "0.1.0"

# In a checkout the stages lie beside this folder. Python started there finds this folder before the installed
# package, and would not find them without this.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "exporters").is_dir():
    __path__.append(str(_checkout))
