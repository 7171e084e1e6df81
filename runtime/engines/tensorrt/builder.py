"""Build a bundle's engines for TensorRT and TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.errors import BuildError, UsageError
from intaglio.extras import load
from intaglio.runtime.engines import gpus as gpu_table
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.build_request import BuildRequest, Built, Refused, engine_stem
from intaglio.runtime.engines.caches.engine_caches import with_slots
from intaglio.runtime.engines.caches.quantized_cache import check_manifest
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.tensorrt.lengths import check_supported, engine_lengths, phases
from intaglio.runtime.engines.tensorrt.library import no_collection
from intaglio.runtime.engines.tensorrt.network import Network
from intaglio.runtime.engines.tensorrt.operators import parsable, plan_libraries
from intaglio.runtime.engines.tensorrt.plan_options import check_hardware, check_plan
from intaglio.targets import Target


@no_collection()
def build_target(bundle: Bundle, target: Target, request: BuildRequest, folder: Path) -> Built:
    """Write an engine of every graph for every GPU into `folder`; see `build`. If all fail: `BuildError`.

    TensorRT-RTX compiles for the GPUs of the request, present or not; TensorRT for this machine's GPU.
    """
    check_supported(bundle, target.name)
    if request.cache_bits is not None:
        check_manifest(bundle, request.cache_bits)
    trt = load(target.library)
    check_plan(request.plan, target, trt)
    chosen = _chosen(target, request.gpus, trt)
    for gpu in chosen:
        check_hardware(request.plan, gpu)
    graphs = [with_slots(graph, request.cache_bits) for graph in bundle.manifest.graphs]
    paths = {
        (graph.file, gpu): folder / f"{engine_stem(f'{target.name}-{gpu.name}', graph.file)}.engine"
        for gpu in chosen
        for graph in graphs
    }
    request.check_free(bundle, [path.name for path in paths.values()])
    lengths, fixed = engine_lengths(bundle, request.lengths)
    # TensorRT-RTX makes kernels for the shapes that come when it runs.
    tuned = [lengths] if target.takes_gpus else phases(bundle, lengths, request.lengths)
    serialized = plan_libraries(request.plan) if request.plugins and bundle.manifest.custom_operators else []
    records: list[EngineRecord] = []
    refused: dict[str, BuildError] = {}  # GPU -> why
    for gpu in chosen:  # each gets its own graph: with the kernels for it, and the dtypes that it has
        try:
            for graph in graphs:
                path, shapes = paths[graph.file, gpu], profiles.shapes(graph.inputs, lengths)
                each = [profiles.shapes(graph.inputs, phase) for phase in tuned]
                source, bits = bundle.path / graph.file, request.cache_bits
                with parsable(source, trt, gpu.sm, fixed, request.plugins, request.plan, bits) as model:
                    network = Network(trt, model, graph, gpu.name)
                    once = each if each[0] != each[-1] else each[:1]
                    network.compile(gpu, once, path, request.workspace, request.plan, serialized)
                size, stored = path.stat().st_size, f"engines/{path.name}"
                records.append(
                    EngineRecord(
                        stored,
                        target.name,
                        network.library,
                        size,
                        gpu.name,
                        gpu.sm,
                        shapes,
                        graph.file,
                        request.plan,
                        request.plugins,
                        bits,
                    )
                )
        except BuildError as error:
            refused[gpu.name] = error
    if len(refused) == len(chosen):
        raise _nothing_built(list(refused.values()))
    return Built(_without(records, refused, folder), [Refused(gpu, str(error)) for gpu, error in refused.items()])


def _chosen(target: Target, names: Sequence[str], trt: Any) -> list[Gpu]:
    """The GPUs to compile for. Raises `UsageError`, and `BuildError` if the required GPU is not present."""
    chosen = [gpu_table.named(name) for name in dict.fromkeys(names)]
    if not target.takes_gpus:
        return [_device(chosen)]
    if not chosen:
        raise UsageError(f"target {target.name}: no GPU given. Name GPUs with --gpu, such as --gpu t4 --gpu a100.")
    for gpu in chosen:
        gpu_table.check_compilable(gpu, trt)
    return chosen


def _nothing_built(reasons: Sequence[BuildError]) -> BuildError:
    """The error if the build fails for all GPUs."""
    if len(reasons) == 1:
        return reasons[0]
    return BuildError("no engine was built. " + " ".join(dict.fromkeys(map(str, reasons))))


def _without(records: Sequence[EngineRecord], refused: Collection[str], folder: Path) -> list[EngineRecord]:
    """The engines of GPUs that support every graph; the files of the other GPUs in `folder` are removed."""
    for record in records:
        if record.gpu in refused:
            (folder / Path(record.path).name).unlink()
    return [record for record in records if record.gpu not in refused]


def _device(asked: Sequence[Gpu]) -> Gpu:
    """This machine's GPU, under the requested name if any. Raises `BuildError` if a different GPU was requested."""
    device = gpu_table.present()
    if device is None:
        raise BuildError(
            "target tensorrt: no CUDA device, and TensorRT compiles only for the GPU of this machine. "
            "Use --target tensorrt-rtx, which compiles without a GPU."
        )
    if others := [gpu.name for gpu in asked if gpu.sm != device.sm]:
        raise BuildError(
            f"target tensorrt: got --gpu {', '.join(others)}, this machine has {device.name} "
            f"(SM{device.sm}). Build there, or use --target tensorrt-rtx, which compiles for other GPUs."
        )
    return asked[0] if asked else device
