"""Building engines into a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from intaglio.bundle import Bundle, EngineRecord
from intaglio.errors import BuildError, UsageError, storage_errors
from intaglio.extras import load
from intaglio.files import temporary_directory
from intaglio.runtime import gpus as gpu_table
from intaglio.runtime import onnxruntime_builder, profiles
from intaglio.runtime.gpus import Gpu
from intaglio.runtime.profiles import Range
from intaglio.runtime.tensorrt_builder import Network
from intaglio.runtime.tensorrt_library import LIBRARIES
from intaglio.runtime.tensorrt_operators import parsable

TARGETS = ("ort-cpu", "ort-cuda", *LIBRARIES)


class Built(msgspec.Struct):
    """What `build` added to the bundle."""

    engines: list[EngineRecord]


def build(
    bundle: str | Path,
    target: str,
    gpus: Sequence[str] = (),
    batch: str | None = None,
    sequence: str | None = None,
    axes: Mapping[str, str] | None = None,
    force: bool = False,
) -> Built:
    """Build engines for `target` and add them to `bundle`: all of them, or on any failure none.

    "ort-cpu", "ort-cuda"   the model as ONNX Runtime optimised it, in `engines/<target>.onnx`
    "tensorrt-rtx"          one engine per name in `gpus`, compiled with or without a GPU at hand
    "tensorrt"              one engine for this machine's GPU

    `batch`, `sequence` and, for axes of other names, `axes` (name -> text) give the lengths that a TensorRT
    engine takes as "MIN:OPT:MAX" or one number; see `profiles` for the defaults. An engine that is there already
    is replaced only with `force`. Of an encoder-decoder ONNX Runtime's engine is the decoder; TensorRT takes none.
    Raises `UsageError`, `MissingExtraError`, and `BuildError` with the node, the
    operator, the reason and what to do.
    """
    if target not in TARGETS:
        raise UsageError(f"target {target!r}: expected one of {', '.join(TARGETS)}.")
    given = {"batch": batch, "sequence": sequence}
    asked = {name: profiles.parse(text, f"--{name}") for name, text in given.items() if text is not None}
    if twice := [name for name in axes or {} if given.get(name) is not None]:
        raise UsageError(f"axis {twice[0]}: its lengths were given twice. Give them once.")
    asked |= {name: profiles.parse(text, f"axis {name}") for name, text in (axes or {}).items()}
    opened = Bundle.open(bundle)
    if target in LIBRARIES and opened.manifest.encoder is not None:
        raise UsageError(
            f"target {target}: bundle {bundle} has two graphs, an encoder and a decoder, and engines are built of one. "
            "Use --target ort-cpu."
        )
    if target in LIBRARIES and opened.manifest.decoder is not None and opened.manifest.decoder.saturation_exits:
        raise UsageError(
            f"target {target}: bundle {bundle} has an exit after every block, and what comes after stands in branches, "
            "which no engine is built of. Use --target ort-cpu."
        )
    with storage_errors(opened.path), temporary_directory(opened.path, ".build-") as folder:
        if target in LIBRARIES:
            records = _build_tensorrt(opened, target, gpus, asked, folder, force)
        elif gpus or asked:
            raise UsageError(f"target {target}: takes no GPU names and no axis lengths. Leave them out.")
        else:
            records = _build_onnxruntime(opened, target, folder, force)
        opened.add_files({f"engines/{path.name}": path for path in folder.iterdir()}, records)
    return Built(records)


def stored_engine(bundle: Bundle, target: str) -> Path | None:
    """The optimised model that `build` stored for "ort-cpu" or "ort-cuda" with the installed ONNX Runtime.

    None when there is none, or one of another version, which may hold fused operators that this one lacks.
    """
    for record in bundle.manifest.engines:
        if record.target == target and record.library == onnxruntime_builder.library_name():
            return bundle.path / record.path
    return None


def _build_onnxruntime(bundle: Bundle, target: str, folder: Path, force: bool) -> list[EngineRecord]:
    path = folder / f"{target}.onnx"
    _check_free(bundle, [path.name], force)
    onnxruntime_builder.optimise(bundle, target, path)
    size = sum(file.stat().st_size for file in folder.iterdir())
    return [EngineRecord(f"engines/{path.name}", target, onnxruntime_builder.library_name(), size)]


def _build_tensorrt(
    bundle: Bundle, target: str, names: Sequence[str], asked: Mapping[str, Range], folder: Path, force: bool
) -> list[EngineRecord]:
    trt = load(LIBRARIES[target])
    chosen = [gpu_table.named(name) for name in dict.fromkeys(names)]
    if target == "tensorrt":
        chosen = [_device(chosen)]
    elif not chosen:
        raise UsageError(f"target {target}: which GPUs? Name them with --gpu, such as --gpu t4 --gpu a100.")
    else:
        for gpu in chosen:
            gpu_table.check_compilable(gpu, trt)
    paths = {gpu: folder / f"{target}-{gpu.name}.engine" for gpu in chosen}
    _check_free(bundle, [path.name for path in paths.values()], force)
    inputs = bundle.manifest.inputs
    if bundle.manifest.decoder is not None:
        asked = profiles.decoding(bundle.manifest.decoder, asked)
    lengths = profiles.ranges(inputs, bundle.manifest.axes, asked)
    shapes = profiles.shapes(inputs, lengths)
    with parsable(bundle.model_path, target, chosen[0].sm, _fixed(bundle, lengths)) as model:
        network = Network(trt, model, bundle.manifest, ", ".join(gpu.name for gpu in chosen))
        for gpu, path in paths.items():
            network.compile(gpu, shapes, path)
    return [
        EngineRecord(
            f"engines/{path.name}", target, network.library, path.stat().st_size, gpu.name, gpu.sm, profiles=shapes
        )
        for gpu, path in paths.items()
    ]


def _fixed(bundle: Bundle, lengths: Mapping[str, Range]) -> dict[str, int]:
    """The axes to which the parsed graph gives a number, and it. Raises `UsageError` where several were asked for."""
    if bundle.manifest.decoder is None:
        return {}
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
        raise UsageError(f"bundle {bundle.path}: has {', '.join(present)} already. Add --force to build anew.")
