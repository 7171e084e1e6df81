"""Make the ONNX parser of TensorRT-RTX take plugins, which has to happen before it is imported.

For a plugin it opens "libtensorrt_rtx.so", which the package on PyPI does not have: its library's name ends with
".so.1". The parser ends the process then. It searches its own folder, which is the one that it was loaded from: so it
is loaded from a folder of links, with that name among them.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path


@cache
def takes_plugins() -> bool:
    """Whether the parser takes plugins; the first call arranges it, unless TensorRT-RTX has been imported before."""
    found = importlib.util.find_spec("tensorrt_rtx_libs")
    if found is None or found.origin is None:
        return True  # not from PyPI, or not there
    name, libraries = "libtensorrt_rtx.so", {path.name: path for path in Path(found.origin).parent.glob("lib*.so*")}
    core = next((path for each, path in libraries.items() if each.startswith(f"{name}.")), None)
    parser = next((each for each in libraries if each.startswith("libtensorrt_onnxparser_rtx.so")), None)
    if name in libraries or core is None or parser is None:
        return name in libraries
    if "tensorrt_rtx" in sys.modules:
        return False
    try:
        folder = Path(tempfile.mkdtemp(prefix="intaglio-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        (folder / name).symlink_to(core)
        (folder / parser).symlink_to(libraries[parser])
        ctypes.CDLL(str(folder / parser))
    except OSError:  # no folder for temporary files, or one without links
        return False
    return True
