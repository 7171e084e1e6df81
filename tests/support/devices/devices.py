"""The GPUs that sessions are tested on: this machine's, and a stand-in, with engines for either."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from cuda_ledger import gpu
from device_meter import Ledger, metered

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.runtime.engines import gpus, profiles
from intaglio.runtime.engines.build import build
from intaglio.runtime.engines.caches.engine_caches import with_slots
from intaglio.runtime.engines.caches.quantized_cache import quantize_caches
from intaglio.runtime.engines.profiles import Range
from intaglio.targets import TARGETS


@dataclass(frozen=True)
class Device:
    """A GPU with the library of a target on it, or stand-ins for them."""

    target: str
    real: bool

    @property
    def grows(self) -> bool:
        """Whether caches may grow: TensorRT's have a fixed length, but the stand-in accepts any."""
        return TARGETS[self.target].runs_files or not self.real

    @contextmanager
    def running(self) -> Iterator[Ledger]:
        """The device and a counter of its traffic; nothing may run on other targets inside the block."""
        if self.real:
            with metered() as traffic:
                yield traffic
            return
        with gpu() as ledger, metered() as traffic:
            yield traffic
        assert traffic == ledger, "the meter is what counts on a real GPU"

    def prepared(self, path: Path, folder: Path, capacity: int) -> Path:
        """A bundle that runs on it."""
        if TARGETS[self.target].runs_files:
            return path
        if not self.real:
            return built(path, folder, capacity, self.target)
        copy = folder / f"{path.parent.name}-{path.name}"
        if not copy.exists():
            shutil.copytree(path, copy)
            build_for_this_gpu(copy, self.target, {"capacity": str(capacity)})
        return copy


def built(path: Path, folder: Path, capacity: int, target: str = "tensorrt-rtx", cache_bits: int | None = None) -> Path:
    """A copy of a bundle with engines, which are the graphs themselves, for caches of `capacity` slots."""
    copy = folder / f"{path.parent.name}-{path.name}-{capacity}-{target}-{cache_bits}"
    if not copy.exists():
        shutil.copytree(path, copy)
        bundle = Bundle.open(copy)
        manifest = bundle.manifest
        assert manifest.decoder is not None
        asked = profiles.decoding(manifest.decoder, {"capacity": Range(capacity, capacity, capacity)})
        axes = {name: axis for graph in manifest.graphs for name, axis in graph.axes.items()}
        inputs = [spec for graph in manifest.graphs for spec in graph.inputs]
        lengths = profiles.ranges(inputs, axes, asked)
        for number, graph in enumerate(manifest.graphs):
            loaded = onnx.load(bundle.path / graph.file)
            if cache_bits is not None:
                quantize_caches(loaded, cache_bits, words=True)
            model = loaded.SerializeToString()
            shapes = profiles.shapes(with_slots(graph, cache_bits).inputs, lengths)
            name = f"engines/{number}.engine"
            library = f"{TARGETS[target].library} 0.0"
            record = EngineRecord(name, target, library, len(model), "a100", 80, shapes, graph.file)
            record.cache_bits = cache_bits
            bundle.add_files({name: model}, [record])
    return copy


def build_for_this_gpu(
    path: Path, target: str, axes: dict[str, str] | None = None, cache_bits: int | None = None
) -> None:
    """Add an engine to the bundle at `path`, or skip the test if the library is missing or does not support the GPU."""
    trt = pytest.importorskip(TARGETS[target].library)
    device = gpus.present()
    assert device is not None
    if target == "tensorrt":
        build(path, target, axes=axes, cache_bits=cache_bits)
        return
    if device.name not in gpus.SM or f"SM{device.sm}" not in trt.ComputeCapability.__members__:
        pytest.skip(f"TensorRT-RTX does not compile for {device.name}")
    build(path, target, gpus=[device.name], axes=axes, cache_bits=cache_bits)
