"""The library of CPU kernels: whether it loads, and what it chooses on this processor."""

from __future__ import annotations

import importlib.metadata
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec

from intaglio.errors import MissingExtraError, UsageError, one_line
from intaglio.extras import load
from intaglio.validation.doctor.private import without_home

REINSTALL = "Run: pip install --force-reinstall --no-deps intaglio"
RUNTIME = "Run: pip install --force-reinstall onnxruntime (on a GPU: onnxruntime-gpu)"
# In a process of its own: a library that was cut short ends the process that loads it.
LOAD = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).intaglio_supported_isas()"


class Kernels(msgspec.Struct, frozen=True):
    """The library of CPU kernels. Without one, operators run as standard ONNX, which is several times slower."""

    library: str | None = None
    loads: bool = False
    instruction_sets: list[str] = []  # that this processor has, the best last
    chosen: str | None = None  # the one in use
    processor: str | None = None  # as tables of micro-kernels name it
    table: str | None = None  # which micro-kernels: "defaults", "shipped", or the file that `intaglio tune` wrote
    micro_kernels: list[str] = []
    operators: list[str] = []
    problems: list[str] = []


def kernels() -> Kernels:
    """Load the library, and register it in ONNX Runtime if that is installed."""
    try:
        from intaglio.plugins import ort
        from intaglio.plugins.micro_kernels import tables
    except ImportError as error:  # a package that Intaglio requires
        return Kernels(problems=[f"the CPU kernels cannot be examined: {without_home(one_line(error))}"])
    path = ort.library()
    if path is None:
        lost = "the library of CPU kernels was installed and is no longer there. " + REINSTALL
        return Kernels(problems=[lost] if _was_installed() else [])
    name = without_home(path)
    if (failure := _failure(path)) is not None:
        return Kernels(name, problems=[f"the library of CPU kernels does not load: {failure}. {REINSTALL}"])
    chosen, table, selected, processor = None, None, [], ort.cpu()
    problems = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            chosen = ort.instruction_set()
            micro_kernels = ort.micro_kernel_set()
            if micro_kernels is not None and processor is not None:
                selected = sorted(kernel.name for kernel in tables.selection(processor, micro_kernels).values())
                own = tables.location(processor)
                shipped = "shipped" if tables.shipped(processor).exists() else "defaults"
                table = without_home(own) if own.exists() else shipped
            ort.register(load("onnxruntime").SessionOptions())
    except MissingExtraError as error:
        # The extras list a missing package. One that is there fails if it was compiled for another NumPy, for example.
        if not (isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "onnxruntime"):
            reason = without_home(one_line(error.__cause__ or error))
            problems.append(f"onnxruntime is installed and cannot be imported: {reason}. {RUNTIME}")
    except UsageError as error:  # INTAGLIO_ISA
        problems.append(str(error))
    except Exception as error:  # ONNX Runtime's own, which have no other common base
        problems.append(f"ONNX Runtime does not take the CPU kernels: {without_home(one_line(error))}")
    problems += dict.fromkeys(without_home(each.message) for each in caught)
    sets, operators = list(ort.supported_instruction_sets()), list(ort.operators())
    return Kernels(name, True, sets, chosen, processor, table, selected, operators, problems)


def _failure(library: Path) -> str | None:
    """Why the library does not load; None if it does."""
    done = subprocess.run([sys.executable, "-c", LOAD, library], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    if done.returncode < 0:
        return f"{without_home(library)} ends the process with {signal.Signals(-done.returncode).name}"
    return without_home(done.stderr.strip().rpartition("\n")[2].removeprefix("OSError: "))


def _was_installed() -> bool:
    """Whether the list of installed files has the library."""
    try:
        files = importlib.metadata.files("intaglio") or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(file.name == "_kernels.so" for file in files)
