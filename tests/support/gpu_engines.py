"""Engines that TensorRT builds for the GPU of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from intaglio.runtime.engines import gpus
from intaglio.runtime.engines.build import build
from intaglio.targets import TARGETS


def build_for_this_gpu(path: Path, target: str, axes: dict[str, str] | None = None) -> None:
    """Add an engine to the bundle at `path`, or skip the test where the library is missing or does not know the GPU."""
    trt = pytest.importorskip(TARGETS[target].library)
    device = gpus.present()
    assert device is not None
    if target == "tensorrt":
        build(path, target, axes=axes)
        return
    if device.name not in gpus.SM or f"SM{device.sm}" not in trt.ComputeCapability.__members__:
        pytest.skip(f"TensorRT-RTX does not compile for {device.name}")
    build(path, target, gpus=[device.name], axes=axes)
