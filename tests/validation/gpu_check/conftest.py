from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from small_checks import SMALL, SMALL_ENGINES, SUPPORT

from intaglio.validation.gpu_check import gpu_check


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give child processes a stand-in for a GPU; check `folders` in small cases."""
    pytest.importorskip("cuda.bindings.nvrtc")

    def give(*folders: str, fault: str = ":", forms: tuple[str, ...] = ("ptx",)) -> None:
        path = [
            str(SUPPORT / "gpu_stand_in"),
            str(SUPPORT),
            *(str(SUPPORT / name) for name in ("engines", "devices")),
            *sys.path,
        ]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
        monkeypatch.setenv("GPU_FAULT", fault)
        monkeypatch.setattr(gpu_check, "SIZES", SMALL)
        monkeypatch.setattr(gpu_check, "kernel_folders", lambda: list(folders))
        monkeypatch.setattr(gpu_check, "FEW_SIZES", SMALL)
        monkeypatch.setattr(gpu_check, "SMALL_SIZES", SMALL)
        monkeypatch.setattr(gpu_check, "ENGINE_SIZES", SMALL_ENGINES)
        if "sanitizer" in forms:
            monkeypatch.setenv("PATH", str(SUPPORT / "gpu_stand_in"), prepend=os.pathsep)
        monkeypatch.setattr(gpu_check, "forms", lambda sm: forms)
        monkeypatch.setattr(gpu_check, "children_at_once", lambda: 2)

    return give
