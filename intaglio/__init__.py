"""Intaglio exports a transformer checkpoint to a compressed, validated engine, and runs it.

Every verb of the command line is a function here, with the same name and options:

    intaglio.export("./all-MiniLM-L6-v2", "minilm")
    intaglio.validate("minilm").passed
    [result.embedding for result in intaglio.run("minilm", ["A sentence to embed."])]

This package holds the code that all stages share; the stages are `intaglio.exporters`, `intaglio.graph_passes`,
`intaglio.plugins`, `intaglio.runtime`, `intaglio.training` and `intaglio.validate`. Importing any of them stays light:
torch, ONNX Runtime and TensorRT are loaded when a function needs them, and a verb's stage on first use of the verb.
"""

from pathlib import Path

from intaglio.lazy_names import lazy_names
from intaglio.version import __version__

TYPE_CHECKING = False  # the module `typing` takes longer to import than all of this one
if TYPE_CHECKING:
    from intaglio.compression import compress
    from intaglio.exporters.convert_checkpoint import convert
    from intaglio.exporters.export_model import export
    from intaglio.graph_passes.recipe_list import recipes
    from intaglio.inspection import inspect
    from intaglio.plugins.kernel_generator.tune import tune
    from intaglio.runtime.agents.answer import agent
    from intaglio.runtime.engines.build import build
    from intaglio.runtime.engines.opening import open_engine
    from intaglio.runtime.generation.generate import generate
    from intaglio.runtime.run_bundle import run
    from intaglio.training.sensitivity import sensitivity
    from intaglio.validate.bench.bench import bench
    from intaglio.validate.roofline import roofline
    from intaglio.validate.tune_decoding import tune_decoding
    from intaglio.validate.validate_bundle import validate

__all__ = [
    "__version__",
    "agent",
    "bench",
    "build",
    "compress",
    "convert",
    "export",
    "generate",
    "inspect",
    "open_engine",
    "recipes",
    "roofline",
    "run",
    "sensitivity",
    "tune",
    "tune_decoding",
    "validate",
]

# Function -> the module that has it.
_MODULES = {
    "agent": "intaglio.runtime.agents.answer",
    "bench": "intaglio.validate.bench.bench",
    "build": "intaglio.runtime",
    "compress": "intaglio.compression",
    "convert": "intaglio.exporters",
    "export": "intaglio.exporters",
    "generate": "intaglio.runtime",
    "inspect": "intaglio.inspection",
    "open_engine": "intaglio.runtime",
    "recipes": "intaglio.graph_passes.recipe_list",
    "roofline": "intaglio.validate.roofline",
    "run": "intaglio.runtime",
    "sensitivity": "intaglio.training",
    "tune": "intaglio.plugins.kernel_generator.tune",
    "tune_decoding": "intaglio.validate.tune_decoding",
    "validate": "intaglio.validate",
}

# In a checkout the stages are next to this folder. Python started there finds this folder before the installed
# package, and would not find them without this.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "setup.py").is_file() and (_checkout / "exporters").is_dir():
    __path__.append(str(_checkout))

# Importing the package `validate` sets `intaglio.validate` to it, and it stays: the package is callable too.
if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """The names of this module, including the verbs."""
    return sorted({*globals(), *_MODULES})
