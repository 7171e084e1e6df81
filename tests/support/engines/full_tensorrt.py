"""Full TensorRT without its library: its own Python bindings over the library of TensorRT-RTX.

The bindings need seven C functions, and TensorRT-RTX's library has six of them and the same interfaces. So the plugin
registry, the descriptions and the checks of the decorators are real; only the builder that uses plugins is missing.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

PARSER, CORE = "libtensorrt_onnxparser_rtx.so.1", "libtensorrt_rtx.so.1"
NEEDED = {"libnvinfer.so.11": [CORE], "libnvonnxparser.so.11": [PARSER, CORE], "libnvinfer_plugin.so.11": []}
MISSING = "int initLibNvInferPlugins(void* logger, const char* space) { return logger == 0 && space == 0; }"


@contextmanager
def full_tensorrt(folder: Path) -> Iterator[ModuleType]:
    """The module `tensorrt`, importable only inside the block; its library is compiled into `folder`."""
    libraries = importlib.util.find_spec("tensorrt_rtx_libs")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if importlib.util.find_spec("tensorrt_bindings") is None or libraries is None or compiler is None:
        pytest.skip("no tensorrt-cu13-bindings, no TensorRT-RTX, or no C compiler")
    assert libraries.origin is not None
    directory = Path(libraries.origin).parent
    (folder / "missing.c").write_text(MISSING)
    for name, needed in NEEDED.items():
        links = [f"-l:{library}" for library in needed]
        options = ["-Wl,--no-as-needed", f"-L{directory}", *links, f"-Wl,-soname,{name}", f"-Wl,-rpath,{directory}"]
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / name), str(folder / "missing.c"), *options]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(folder / name))
    with pytest.MonkeyPatch.context() as patch:
        bindings = importlib.import_module("tensorrt_bindings")
        patch.setitem(sys.modules, "tensorrt", bindings)
        patch.setitem(sys.modules, "tensorrt.plugin", importlib.import_module("tensorrt_bindings.plugin"))
        yield bindings
