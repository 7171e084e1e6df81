"""Building engines into a bundle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from intaglio.bundle import MODEL, Bundle, EngineRecord
from intaglio.errors import BuildError, UsageError, storage_errors
from intaglio.extras import load
from intaglio.files import temporary_directory
from intaglio.runtime.engines import gpus as gpu_table
from intaglio.runtime.engines import onnxruntime_builder, profiles
from intaglio.runtime.engines.gpus import Gpu
from intaglio.runtime.engines.profiles import Range
from intaglio.runtime.engines.tensorrt_builder import Network
from intaglio.runtime.engines.tensorrt_library import LIBRARIES
from intaglio.runtime.engines.tensorrt_operators import parsable

TARGETS = ("ort-cpu", "ort-cuda", *LIBRARIES)


class Refused(msgspec.Struct):
    """A GPU that no engine was built for."""

    gpu: str
    reason: str  # one line: the node, the operator, the reason and what to do


class Built(msgspec.Struct):
    """What `build` added to the bundle, and what it could not."""

    engines: list[EngineRecord]
    refused: list[Refused] = []


def build(
    bundle: str | Path,
    target: str,
    gpus: Sequence[str] = (),
    batch: str | None = None,
    sequence: str | None = None,
    axes: Mapping[str, str] | None = None,
    force: bool = False,
) -> Built:
    """Build engines for `target` and add to `bundle` what can be built; GPUs that refuse it are in the result.

    "ort-cpu", "ort-cuda"   the model as ONNX Runtime optimised it, in `engines/<target>.onnx`
    "tensorrt-rtx"          one engine per name in `gpus`, compiled with or without a GPU at hand
    "tensorrt"              one engine for this machine's GPU

    Of an encoder-decoder the encoder gets such engines too, under names that end with "-encoder".

    `batch`, `sequence` and, for axes of other names, `axes` (name -> text) give the lengths that a TensorRT
    engine takes as "MIN:OPT:MAX" or one number; see `profiles` for the defaults. An engine that is there already
    is replaced only with `force`. Raises `UsageError`, `MissingExtraError`, and, where nothing can be built,
    `BuildError` with the node, the operator, the reason and what to do. Nothing is added to the bundle then.
    """
    if target not in TARGETS:
        raise UsageError(f"target {target!r}: expected one of {', '.join(TARGETS)}.")
    given = {"batch": batch, "sequence": sequence}
    asked = {name: profiles.parse(text, f"--{name}") for name, text in given.items() if text is not None}
    if twice := [name for name in axes or {} if given.get(name) is not None]:
        raise UsageError(f"axis {twice[0]}: its lengths were given twice. Give them once.")
    asked |= {name: profiles.parse(text, f"axis {name}") for name, text in (axes or {}).items()}
    opened = Bundle.open(bundle)
    if target in LIBRARIES and opened.manifest.decoder is not None and opened.manifest.decoder.saturation_exits:
        raise UsageError(
            f"target {target}: bundle {bundle} has an exit after every block, and what comes after stands in branches, "
            "which no engine is built of. Use --target ort-cpu."
        )
    refused: list[Refused] = []
    with storage_errors(opened.path), temporary_directory(opened.path, ".build-") as folder:
        if target in LIBRARIES:
            records, refused = _build_tensorrt(opened, target, gpus, asked, folder, force)
        elif gpus or asked:
            raise UsageError(f"target {target}: takes no GPU names and no axis lengths. Leave them out.")
        else:
            records = _build_onnxruntime(opened, target, folder, force)
        opened.add_files({f"engines/{path.name}": path for path in folder.iterdir()}, records)
    return Built(records, refused)


def stored_engine(bundle: Bundle, target: str, graph: str = MODEL) -> Path | None:
    """What `build` stored of the ONNX file `graph`: as the installed ONNX Runtime optimised it for a target of its own.

    None when there is none, or one of another version, which may hold fused operators that this one lacks.
    """
    for record in bundle.manifest.engines:
        if (record.target, record.graph) == (target, graph) and record.library == onnxruntime_builder.library_name():
            return bundle.path / record.path
    return None


def _build_onnxruntime(bundle: Bundle, target: str, folder: Path, force: bool) -> list[EngineRecord]:
    paths = {graph.file: folder / f"{_stem(target, graph.file)}.onnx" for graph in bundle.manifest.graphs}
    _check_free(bundle, [path.name for path in paths.values()], force)
    records = []
    for graph, path in paths.items():
        onnxruntime_builder.optimise(bundle, graph, target, path)
        size = sum(file.stat().st_size for file in folder.glob(f"{path.name}*"))
        library = onnxruntime_builder.library_name()
        records.append(EngineRecord(f"engines/{path.name}", target, library, size, graph=graph))
    return records


def _build_tensorrt(
    bundle: Bundle, target: str, names: Sequence[str], asked: Mapping[str, Range], folder: Path, force: bool
) -> tuple[list[EngineRecord], list[Refused]]:
    """Raises `BuildError` where every GPU refuses."""
    trt = load(LIBRARIES[target])
    chosen = [gpu_table.named(name) for name in dict.fromkeys(names)]
    if target == "tensorrt":
        chosen = [_device(chosen)]
    elif not chosen:
        raise UsageError(f"target {target}: which GPUs? Name them with --gpu, such as --gpu t4 --gpu a100.")
    else:
        for gpu in chosen:
            gpu_table.check_compilable(gpu, trt)
    graphs = bundle.manifest.graphs
    paths = {
        (graph.file, gpu): folder / f"{_stem(f'{target}-{gpu.name}', graph.file)}.engine"
        for graph in graphs
        for gpu in chosen
    }
    _check_free(bundle, [path.name for path in paths.values()], force)
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
        with parsable(bundle.path / graph.file, target, chosen[0].sm, fixed) as model:
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
                        f"engines/{path.name}", target, network.library, size, gpu.name, gpu.sm, shapes, graph.file
                    )
                )
        remaining = [gpu for gpu in chosen if gpu.name not in refused]
        if not remaining:
            raise _nothing_built(list(refused.values()))
    return _without(records, refused, folder), [Refused(gpu, str(error)) for gpu, error in refused.items()]


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


def _stem(name: str, graph: str) -> str:
    """The name of an engine's file, without its ending: `name` for model.onnx, and that of another graph after it."""
    return name if graph == MODEL else f"{name}-{Path(graph).stem}"


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


def _check_free(bundle: Bundle, names: Sequence[str], force: bool) -> None:
    present = [name for name in names if f"engines/{name}" in bundle.manifest.files]
    if present and not force:
        raise UsageError(f"bundle {bundle.path}: has {', '.join(present)} already. Add --force to build again.")
