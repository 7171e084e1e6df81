"""Load our library of plugins into TensorRT."""

from __future__ import annotations

from typing import Any

from intaglio import rtx_parser
from intaglio.errors import BuildError, EngineError
from intaglio.plugins import ort
from intaglio.plugins.ort import plugin_errors
from intaglio.plugins.registry import DOMAIN
from intaglio.plugins.trt.kernel_nodes import PLUGIN


def load_plugins(trt: Any) -> bool:
    """Add the plugin CudaKernel to the registry of the module `trt`, once a process; False without our library.

    Engines that were built with it need it to open. Raises `EngineError` if TensorRT cannot load the library.
    """
    path = ort.library()
    if path is None:
        return False
    registry = trt.get_plugin_registry()
    plugin_errors()  # from now on they are kept for us
    if any((each.name, each.plugin_namespace) == (PLUGIN, DOMAIN) for each in registry.all_creators):
        return True
    if registry.load_library(str(path)) is None:
        raise EngineError(f"{trt.__name__} {trt.__version__} does not load {path}. Install intaglio again.")
    return True


def load_plugins_to_build(trt: Any) -> None:
    """As `load_plugins`, for a graph with the plugin. Raises `BuildError` if it cannot be used."""
    if trt.__name__ == "tensorrt_rtx" and not rtx_parser.takes_plugins():
        raise BuildError(
            "the parser of tensorrt_rtx finds no plugins: it was imported before intaglio loaded it, or there is no "
            "folder for temporary files. Load it by intaglio.extras.load, set TMPDIR, or use --no-plugins."
        )
    if not load_plugins(trt):
        raise BuildError(
            "there is no library of plugins: intaglio was installed without a C++ compiler. Install it again with "
            "one, or use --no-plugins."
        )
