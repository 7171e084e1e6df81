"""Store a model as optimised by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from intaglio.bundle.bundle import Bundle, EngineRecord
from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.model_file import parse
from intaglio.display import progress
from intaglio.errors import BuildError, EngineError, UsageError
from intaglio.extras import load
from intaglio.runtime.engines import gpus
from intaglio.runtime.engines.build_request import BuildRequest, Built, engine_stem
from intaglio.runtime.engines.onnxruntime.custom_operators import runnable
from intaglio.runtime.engines.onnxruntime.packed_products import has_narrow_weights
from intaglio.runtime.engines.onnxruntime.provider import missing_provider, open_session
from intaglio.runtime.engines.onnxruntime.stored import library_name
from intaglio.targets import TARGETS, Target


def build_target(bundle: Bundle, target: Target, request: BuildRequest, folder: Path) -> Built:
    """Write every graph of `bundle`, optimised by ONNX Runtime, to `<target>.onnx` in `folder`; see `build`."""
    if request.gpus or request.lengths:
        raise UsageError(f"target {target.name}: does not accept GPU names or axis lengths. Leave them out.")
    paths = {graph.file: folder / f"{engine_stem(target.name, graph.file)}.onnx" for graph in bundle.manifest.graphs}
    request.check_free(bundle, [path.name for path in paths.values()])
    records = []
    for graph, path in paths.items():
        optimise(bundle, graph, target.name, path)
        gpu = gpus.present() if target.needs_gpu else None  # whose kernels it has
        size = sum(file.stat().st_size for file in folder.glob(f"{path.name}*"))
        records.append(
            EngineRecord(
                f"engines/{path.name}",
                target.name,
                library_name(),
                size,
                gpu.name if gpu else None,
                gpu.sm if gpu else None,
                graph=graph,
            )
        )
    return Built(records)


def optimise(bundle: Bundle, graph: str, target: str, path: Path) -> None:
    """Write the bundle's ONNX file `graph`, optimised for `target` ("ort-cpu" or "ort-cuda"), to `path`.

    If the model has external data, so does the result, in `path` + ".data". The level is "extended": constants folded
    and nodes fused, but nothing that depends on the CPU of this machine. So the file works on any machine, and opening
    it adds the rest (memory layouts, fused casts) for the CPU present. Raises `BuildError`.
    """
    onnxruntime = load("onnxruntime")
    model = bundle.path / graph
    if missing := missing_provider(target):
        raise BuildError(missing)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    read = parse(model)
    if external_data_files(read):  # else the new file would refer to the old one's data in another folder
        entry = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(entry + "file_name", path.name + ".data")
        options.add_session_config_entry(entry + "min_size_in_bytes", "1024")
    with (
        progress.step(f"optimising {graph} for {target}"),
        runnable(model, options, bundle.manifest.custom_operators, TARGETS[target].needs_gpu) as file,
    ):
        try:
            open_session(model, str(file), options, target, keeps_weights=has_narrow_weights(read.graph))
        except EngineError as error:
            raise BuildError(str(error)) from error
