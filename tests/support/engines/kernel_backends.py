"""The backends that a library in C++ is tested with: NumPy, which runs without it, and each instruction set."""

from __future__ import annotations

from types import ModuleType

import pytest

from intaglio.plugins import ort
from intaglio.plugins.ort import build

BACKENDS = ("numpy", *build.instruction_sets())


def use_backend(name: str, patch: pytest.MonkeyPatch, module: ModuleType, library: str) -> None:
    """Let `module`, whose function `library` returns the compiled one or None, run on a backend, until `patch` ends.

    Skips the test if this processor lacks it.
    """
    function = getattr(module, library)
    if name == "numpy":
        patch.setattr(module, library, lambda: None)
    elif name not in ort.supported_instruction_sets():
        pytest.skip(f"no {name} kernels here")
    else:
        patch.setenv("INTAGLIO_ISA", name)
        patch.setattr(module, library, getattr(function, "__wrapped__", function))  # without what it has kept
        assert getattr(module, library)() is not None and ort.instruction_set() == name
