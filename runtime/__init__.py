"""Engines (ONNX Runtime, TensorRT), building them, running a bundle on text, and generating text.

Names are imported on first use, so that help texts can read the strategies without ONNX.
"""

from intaglio.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from intaglio.runtime.engines.build import build
    from intaglio.runtime.engines.engine import Engine
    from intaglio.runtime.engines.opening import open_engine
    from intaglio.runtime.generation.generate import TextGenerator, generate
    from intaglio.runtime.run_bundle import run
    from intaglio.runtime.similarities import similarity

__all__ = ["Engine", "TextGenerator", "build", "generate", "open_engine", "run", "similarity"]

# Name -> the module that has it.
_MODULES = {
    "Engine": ".engines.engine",
    "TextGenerator": ".generation.generate",
    "build": ".engines.build",
    "generate": ".generation.generate",
    "open_engine": ".engines.opening",
    "run": ".run_bundle",
    "similarity": ".similarities",
}

if not TYPE_CHECKING:  # a type checker would take any name for one of this module's
    __getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    """The names of this module, including those not imported yet."""
    return sorted({*globals(), *__all__})
