"""Building a bundle's engines for TensorRT and TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.bundle import Bundle, EngineRecord
from intaglio.errors import BuildError, UsageError
from intaglio.extras import load
from intaglio.runtime.engines import gpus as gpu_table
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.build_request import BuildRequest, Built, Refused, engine_stem
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.profiles import Range
from intaglio.runtime.engines.tensorrt_network import Network
from intaglio.runtime.engines.tensorrt_operators import parsable
from intaglio.targets import Target


def build_target(bundle: Bundle, target: Target, request: BuildRequest, folder: Path) -> Built:
    """Write an engine of every graph for every GPU into `folder`; see `build`. Where all refuse: `BuildError`."""
    if bundle.manifest.decoder is not None and bundle.manifest.decoder.saturation_exits:
        raise UsageError(
            f"target {target.name}: bundle {bundle.path} has an exit after every block, and what comes after stands in "
            "branches, which no engine is built of. Use --target ort-cpu."
        )
    trt = load(target.library)
    chosen = _chosen(target, request.gpus, trt)
    graphs = bundle.manifest.graphs
    paths = {
        (graph.file, gpu): folder / f"{engine_stem(f'{target.name}-{gpu.name}', graph.file)}.engine"
        for graph in graphs
        for gpu in chosen
    }
    request.check_free(bundle, [path.name for path in paths.values()])
    asked = request.lengths
    if bundle.manifest.decoder is not None:
        asked = profiles.decoding(bundle.manifest.decoder, asked)
    axes = {name: axis for graph in graphs for name, axis in graph.axes.items()}  # one name, one length in all
    lengths = profiles.ranges([spec for graph in graphs for spec in graph.inputs], axes, asked)
    fixed = {} if bundle.manifest.decoder is None else _fixed(lengths)
    records: list[EngineRecord] = []
    refused: dict[str, BuildError] = {}  # GPU -> why
    remaining = chosen
    for graph in graphs:
        shapes = profiles.shapes(graph.inputs, lengths)
        with parsable(bundle.path / graph.file, target.name, chosen[0].sm, fixed) as model:
            network = Network(trt, model, graph, ", ".join(gpu.name for gpu in chosen))
            for gpu in remaining:
                path = paths[graph.file, gpu]
                try:
                    network.compile(gpu, shapes, path)
                except BuildError as error:
                    refused[gpu.name] = error
                    continue
                size = path.stat().st_size
                records.append(
                    EngineRecord(
                        f"engines/{path.name}", target.name, network.library, size, gpu.name, gpu.sm, shapes, graph.file
                    )
                )
        remaining = [gpu for gpu in chosen if gpu.name not in refused]
        if not remaining:
            raise _nothing_built(list(refused.values()))
    return Built(_without(records, refused, folder), [Refused(gpu, str(error)) for gpu, error in refused.items()])


def _chosen(target: Target, names: Sequence[str], trt: Any) -> list[Gpu]:
    """The GPUs to compile for. Raises `UsageError`, and `BuildError` for a machine without the one it needs."""
    chosen = [gpu_table.named(name) for name in dict.fromkeys(names)]
    if not target.takes_gpus:
        return [_device(chosen)]
    if not chosen:
        raise UsageError(f"target {target.name}: which GPUs? Name them with --gpu, such as --gpu t4 --gpu a100.")
    for gpu in chosen:
        gpu_table.check_compilable(gpu, trt)
    return chosen


def _nothing_built(reasons: Sequence[BuildError]) -> BuildError:
    """The error for GPUs that all refuse."""
    if len(reasons) == 1:
        return reasons[0]
    return BuildError("no engine was built. " + " ".join(dict.fromkeys(map(str, reasons))))


def _without(records: Sequence[EngineRecord], refused: Collection[str], folder: Path) -> list[EngineRecord]:
    """The engines of GPUs that took every graph; the files in `folder` of the others are removed."""
    for record in records:
        if record.gpu in refused:
            (folder / Path(record.path).name).unlink()
    return [record for record in records if record.gpu not in refused]


def _fixed(lengths: Mapping[str, Range]) -> dict[str, int]:
    """The axes to which a decoder's graph gives a number, and it. Raises `UsageError` where several were asked for."""
    capacity = lengths["capacity"]
    if capacity.minimum != capacity.maximum:
        raise UsageError("axis capacity: TensorRT writes into caches of one length only. Give one number.")
    return {"capacity": capacity.maximum}


def _device(asked: Sequence[Gpu]) -> Gpu:
    """This machine's GPU, under the name that was asked for if any. Raises `BuildError` when it is another."""
    device = gpu_table.present()
    if device is None:
        raise BuildError(
            "target tensorrt: no CUDA device, and TensorRT compiles only for the GPU at hand. "
            "Use --target tensorrt-rtx, which compiles without a GPU."
        )
    if others := [gpu.name for gpu in asked if gpu.sm != device.sm]:
        raise BuildError(
            f"target tensorrt: --gpu {', '.join(others)} was asked for, this machine has {device.name} "
            f"(SM{device.sm}). Build there, or use --target tensorrt-rtx, which compiles for other GPUs."
        )
    return asked[0] if asked else device
