"""An environment for `intaglio doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.validation.doctor import machine


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that come before all others."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


@pytest.fixture(autouse=True)
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test before may have loaded a stand-in for NVIDIA's driver into this process."""
    monkeypatch.setattr(machine, "CUDA_DRIVER", "libcuda-of-no-machine.so.1")
