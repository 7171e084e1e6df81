"""Write a folder from which TensorRT's own tools build a bundle's engines."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from intaglio.bundle.bundle import Bundle, FileRecord
from intaglio.bundle.model_file import load, save
from intaglio.deploy.tensorrt.script import SCRIPT, Shapes, script
from intaglio.errors import UsageError
from intaglio.files.atomic import TENSORRT, atomic_directory, check_output_directory
from intaglio.files.hashes import sha256
from intaglio.plugins import ort as kernels
from intaglio.runtime.engines import gpus as gpu_table
from intaglio.runtime.engines import profiles
from intaglio.runtime.engines.caches.engine_caches import with_slots
from intaglio.runtime.engines.caches.quantized_cache import check_manifest
from intaglio.runtime.engines.tensorrt.lengths import check_supported, engine_lengths

if TYPE_CHECKING:
    import onnx_ir as ir

LIBRARY = "libintaglio_plugins.so"
DECOMPOSABLE = "TRT_decomposable"  # an attribute of ONNX's Attention that TensorRT's parser reads


class DeployedTensorRT(msgspec.Struct, kw_only=True):
    """The folder that was written; tensorrt.json in it holds the same."""

    folder: str
    bundle: str  # the name of the bundle's folder
    gpu: str
    sm: int  # its compute capability, times ten
    graphs: list[str]
    plugins: bool  # whether building and running the engines takes the library of plugins
    cache_bits: int | None  # of a decoder's cached keys and values; null: as the graph has them
    profiles: dict[str, dict[str, dict[str, list[int]]]]  # graph -> input -> min, opt, max -> shape
    files: dict[str, FileRecord]
    bytes: int


def deploy_tensorrt(
    bundle: str | Path,
    output: str | Path,
    *,
    gpu: str,
    batch: str | None = None,
    sequence: str | None = None,
    axes: Mapping[str, str] | None = None,
    cache_bits: int | None = None,
    force: bool = False,
) -> DeployedTensorRT:
    """Write a folder from which trtexec, or any program, builds the engines of `bundle` for `gpu`.

    It has the graphs, with plugin nodes for our operators which bring the kernels for that GPU, the library of plugins,
    and `build.sh`, which calls trtexec. It is written whole or not at all. Lengths and `cache_bits` are as for
    `intaglio.runtime.build`; `force` replaces such a folder. Raises `UsageError`, `BundleError`, `BuildError` for a
    node that no kernel supports, `MissingExtraError` without the CUDA compiler.
    """
    from intaglio.plugins.trt import use_kernel_plugins
    from intaglio.runtime.engines.tensorrt.operators import prepared

    output, chosen = Path(output), gpu_table.named(gpu)
    check_output_directory(output, force, TENSORRT)
    opened = Bundle.open(bundle)
    check_supported(opened, "tensorrt")
    if cache_bits is not None:
        check_manifest(opened, cache_bits)
    plugins = bool(opened.manifest.custom_operators) or cache_bits is not None
    library = kernels.library() if plugins else None
    if plugins and library is None:
        raise UsageError(
            f"bundle {opened.path}: needs plugins, and intaglio was installed without a compiler, so there is no "
            "library of them. Install g++ and then intaglio again."
        )
    lengths, fixed = engine_lengths(opened, profiles.asked(batch, sequence, axes))
    graphs = [with_slots(graph, cache_bits) for graph in opened.manifest.graphs]
    shapes = {graph.file: profiles.shapes(graph.inputs, lengths) for graph in graphs}

    def with_plugins(model: ir.Model, _: Sequence[str]) -> None:
        use_kernel_plugins(model, chosen.sm)

    with atomic_directory(output, force, TENSORRT) as folder:
        for graph in opened.manifest.graphs:
            source = opened.path / graph.file
            model = prepared(
                source, chosen.sm, fixed, lambda model, _: use_kernel_plugins(model, chosen.sm), cache_bits
            )
            save(_decomposable(model or load(source)), folder / graph.file)
        if library is not None:
            shutil.copyfile(library, folder / LIBRARY)
        (folder / SCRIPT).write_text(script(chosen, _dynamic(opened, shapes, fixed), LIBRARY if plugins else None))
        (folder / SCRIPT).chmod(0o755)
        files = {
            path.name: FileRecord(sha256=sha256(path), bytes=path.stat().st_size) for path in sorted(folder.iterdir())
        }
        written = DeployedTensorRT(
            folder=str(output),
            bundle=opened.path.resolve().name,
            gpu=chosen.name,
            sm=chosen.sm,
            graphs=list(shapes),
            plugins=plugins,
            cache_bits=cache_bits,
            profiles=shapes,
            files=files,
            bytes=sum(each.bytes for each in files.values()),
        )
        (folder / TENSORRT).write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2) + b"\n")
    return written


def _decomposable(model: ir.Model) -> ir.Model:
    """The model, whose attention runs as several kernels where TensorRT has none for all of it, as in float32.

    A program that has the network sets `IAttention.decomposable` instead; trtexec cannot.
    """
    import onnx_ir as ir

    for node in model.graph.all_nodes():
        if (node.domain, node.op_type) == ("", "Attention"):
            node.attributes.add(ir.AttrInt64(DECOMPOSABLE, 1))
    return model


def _dynamic(bundle: Bundle, shapes: Mapping[str, Shapes], fixed: Mapping[str, int]) -> dict[str, Shapes]:
    """Of the shapes of each graph's inputs those of inputs that have not one shape alone."""
    return {
        graph.file: {
            spec.name: shapes[graph.file][spec.name]
            for spec in graph.inputs
            if any(isinstance(length, str) and length not in fixed for length in spec.shape)
        }
        for graph in bundle.manifest.graphs
    }
