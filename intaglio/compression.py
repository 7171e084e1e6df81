"""The verb `compress`: apply a recipe to a bundle and write a new bundle.

It is above the stages `graph_passes`, which has the passes, and `training`, which computes the sensitivities that some
of them need. `intaglio.compress` and `intaglio.graph_passes.compress` are this function.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import msgspec

from intaglio.bundle.bundle import MODEL, Bundle, PassRecord, create
from intaglio.bundle.external_data import external_data_files
from intaglio.bundle.model_file import load, outline, save
from intaglio.display.progress import step
from intaglio.errors import GraphError, UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.executor import OPTION as EXECUTOR
from intaglio.executors.opening import open_executor
from intaglio.executors.worker import environment
from intaglio.files.atomic import check_output_directory
from intaglio.files.hashes import sha256
from intaglio.graph_passes.calibration.data import OPTION as CALIBRATION
from intaglio.graph_passes.calibration.data import CalibrationData
from intaglio.graph_passes.checker import check
from intaglio.graph_passes.contract import Need, Pass, PassInputs
from intaglio.graph_passes.finished_layers import NOTHING_FINISHED, kept_beside
from intaglio.graph_passes.finished_layers import OPTION as RESUME
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.run_passes import manifest_after, run_passes
from intaglio.graph_passes.user.code import UserCode
from intaglio.graph_passes.weight_share import LeftWeight
from intaglio.plugins import custom_operators
from intaglio.processes.temporary import sibling_directory
from intaglio.processes.threads import limited
from intaglio.runtime.engines.onnxruntime.open_check import NotOpened, unopenable
from intaglio.sensitivity_file import OPTION as SENSITIVITY
from intaglio.sensitivity_file import Sensitivities
from intaglio.storage.upload import uploads
from intaglio.training.gradients.sensitivity import sensitivity as compute_sensitivities

ALLOW_CODE = "--allow-code"
GRAPH = "--graph"


class Compressed(msgspec.Struct):
    """The result of `compress`: the passes with their counts, and the bytes of graphs and weights before and after.

    `untouched` are the graphs that the recipe does not apply to, such as the encoder of an encoder-decoder.

    For the rewritten graph, `share_compressed` is the compressed fraction of the elements of linear layers' weights and
    embedding tables, `left` lists the uncompressed ones, and `left_unasked` is the fraction of the linear layers'
    weights that is uncompressed although no option of a pass asked for it. None for recipes that compress no weights.
    `resumed` is the number of layers of an earlier run that `resume` found.
    """

    bundle: str
    recipe: str
    passes: list[PassRecord]
    bytes_before: int
    bytes_after: int
    untouched: list[str] = []
    share_compressed: float | None = None
    left: list[LeftWeight] = []
    left_unasked: float | None = None
    resumed: int = 0


@uploads("resume")
def compress(
    bundle: str | Path,
    output: str | Path,
    recipe: str | Path,
    force: bool = False,
    calibration: str | Path | None = None,
    allow_float: bool = False,
    sensitivity: str | Path | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    threads: int | None = None,
    allow_code: bool = False,
    executor: str = INLINE.name,
    resume: bool = False,
    graph: str = MODEL,
) -> Compressed:
    """Apply the passes of `recipe` (a name or a YAML file) to `bundle`, and write the result to `output`.

    The tokenizer's files and the manifest are copied; engines and reports are not, as they belong to the old graph.
    `graph`: the bundle's ONNX file that the passes apply to; of an encoder-decoder that is the decoder, or with
    encoder.onnx the encoder. The others are copied unchanged.
    `calibration`: real inputs to observe activations on, a UTF-8 file with one text per line or an .npz file of arrays
    by input name, for a speech recogniser a folder or a list of recordings. `sensitivity`: the file that
    `intaglio.sensitivity` made for this bundle, or for another one of the same checkpoint; if a pass needs it and it is
    not given, it is computed from `calibration`, a text. Each must be given if and only if a pass of the
    recipe needs it. `allow_float`: keep operators in floating point that an integer-only recipe cannot convert, instead
    of raising. `bits`, `group_size`, `allow_float`: set in every pass with this option. `threads`: maximum number of
    threads, by default all processors that this process may use. `allow_code`: let the recipe run the user's own
    functions that it names. `executor`: where the tasks of the passes run, `inline`, `processes`, `processes:N`, `ray`
    or `ray://HOST:PORT`; the result is the same, to the byte. `resume`: keep finished layers in a folder beside
    `output` until it is complete, and go on from those of a run that ended early.
    The new graph is opened in ONNX Runtime before it gets its name.
    Raises `BundleError`, `EngineError`, `GraphError`, `UsageError`, `StorageError`; nothing is left at `output` then.
    """
    name, passes = load_recipe(
        recipe, {"bits": bits, "group_size": group_size, "allow_float": True if allow_float else None}
    )
    _check_code(name, passes, allow_code)
    _check_data(name, passes, calibration, sensitivity)
    _check_run(name, passes, executor, resume)
    check_output_directory(Path(output), force)
    needs = {need for each in passes for need in each.needs}
    with limited(threads):  # which its processes divide among themselves
        workers = open_executor(executor)
    with step("reading"):
        source = Bundle.open(bundle)
        _check_graph(source, graph)
        data = CalibrationData.open(calibration, source, graph) if calibration and Need.CALIBRATION in needs else None
    with ExitStack() as open_:
        finished = NOTHING_FINISHED
        if resume:
            finished = open_.enter_context(kept_beside(Path(output), _run(source, passes, data, sensitivity)))
        open_.enter_context(workers)
        weighting = open_.enter_context(
            _sensitivities(source, Path(output), needs, calibration, sensitivity, threads, finished.folder, workers)
        )
        with step("reading"):
            path = source.path / graph
            model = load(path, mapped=True)
            check(model, f"{path} contains")
            before = _model_bytes(source.graph_paths)
        code = UserCode(Path(recipe).parent) if Need.CODE in needs else None
        inputs = PassInputs(source.manifest, data, weighting, code, workers, finished)
        done = run_passes(passes, model, inputs, threads)
        for record in done.records:
            record.graph = graph
        with step("writing"), create(output, force) as draft:
            draft.copy_companions(source, graph)
            others = [path for path in source.graph_paths if path.name != graph]
            operators = [name for path in others for name in custom_operators(outline(path).graph.node)]
            draft.manifest = manifest_after(source.manifest, done.model, done.records, graph, operators)
            save(done.model, draft.path / graph, beside=source.data_of_others(graph))
            _check_opens(draft.path / graph, source.path / graph, name, done.records)
            after = _model_bytes([draft.path / graph.file for graph in source.manifest.graphs])
    untouched = [path.name for path in others]
    result = Compressed(str(output), name, done.records, before, after, untouched, resumed=finished.found)
    if done.share is not None:
        result.share_compressed, result.left = done.share.compressed, done.share.left
        result.left_unasked = done.share.left_unasked
    return result


def _check_graph(source: Bundle, graph: str) -> None:
    """Raise `UsageError` for a graph that recipes do not apply to."""
    encoder = source.manifest.encoder
    known = [MODEL, *([encoder.file] if encoder is not None else [])]
    if graph not in known:
        raise UsageError(f"{GRAPH} {graph}: recipes change {' or '.join(known)} of {source.path}. Choose one.")


def _check_code(recipe: str, passes: Sequence[Pass], allow_code: bool) -> None:
    """Raise `UsageError` if the recipe runs its own code without permission, or has permission without code."""
    running = [graph_pass for graph_pass in passes if Need.CODE in graph_pass.needs]
    if running and not allow_code:
        names = ", ".join(str(getattr(graph_pass, "function", graph_pass.name)) for graph_pass in running)
        raise UsageError(
            f"recipe {recipe}: runs code that is not part of intaglio: {names}. Read it, and if you trust it, add "
            f"{ALLOW_CODE} (in Python allow_code=True)."
        )
    if allow_code and not running:
        raise UsageError(f"{ALLOW_CODE}: recipe {recipe} runs no code of its own. Leave the option out.")


def _check_run(recipe: str, passes: Sequence[Pass], executor: str, resume: bool) -> None:
    """Raise `UsageError` for an executor that no pass uses, and for layers that no pass keeps."""
    if executor != INLINE.name and not any(graph_pass.uses_executor for graph_pass in passes):
        raise UsageError(f"{EXECUTOR} {executor}: no pass of recipe {recipe} divides its work. Leave the option out.")
    if resume and not any(graph_pass.keeps_layers for graph_pass in passes):
        raise UsageError(f"{RESUME}: no pass of recipe {recipe} keeps finished layers. Leave the option out.")
    if resume and any(Need.CODE in graph_pass.needs for graph_pass in passes):
        raise UsageError(f"{RESUME}: recipe {recipe} runs code of its own, whose changes would not be noticed.")


def _run(
    source: Bundle, passes: Sequence[Pass], data: CalibrationData | None, sensitivity: str | Path | None
) -> dict[str, object]:
    """Return everything that finished layers depend on, as JSON values."""
    return {
        "checkpoint": source.manifest.source.sha256,
        "bundle": {graph.file: source.manifest.files[graph.file].sha256 for graph in source.manifest.graphs},
        "recipe": [[graph_pass.name, dataclasses.asdict(graph_pass)] for graph_pass in passes],
        "calibration": None if data is None else data.load(1, 1)[1].sha256,
        "sensitivity": None if sensitivity is None else sha256(Path(sensitivity)),
        "versions": dataclasses.asdict(environment()),
    }


def _check_data(
    recipe: str, passes: Sequence[Pass], calibration: str | Path | None, sensitivity: str | Path | None
) -> None:
    """Raise `UsageError` if a pass lacks data, or if no pass needs the given data."""
    observing = [graph_pass.name for graph_pass in passes if Need.CALIBRATION in graph_pass.needs]
    weighting = [graph_pass.name for graph_pass in passes if Need.SENSITIVITY in graph_pass.needs]
    if observing and calibration is None:
        raise UsageError(
            f"recipe {recipe}: pass {observing[0]} needs real text. Give {CALIBRATION} FILE (one text per line; for a "
            "speech recogniser a folder or a list of recordings, for a model that reads images a folder of them)."
        )
    if weighting and calibration is None and sensitivity is None:
        raise UsageError(
            f"recipe {recipe}: pass {weighting[0]} needs the sensitivity of the loss to each weight. Give "
            f"{CALIBRATION} FILE, a text to measure it on, or {SENSITIVITY} FILE, made by intaglio sensitivity."
        )
    if calibration is not None and not observing and not (weighting and sensitivity is None):
        raise UsageError(f"{CALIBRATION} {calibration}: no pass of recipe {recipe} needs it. Leave it out.")
    if sensitivity is not None and not weighting:
        raise UsageError(f"{SENSITIVITY} {sensitivity}: no pass of recipe {recipe} needs it. Leave it out.")


@contextmanager
def _sensitivities(
    source: Bundle,
    output: Path,
    needs: set[Need],
    calibration: str | Path | None,
    given: str | Path | None,
    threads: int | None,
    kept: Path | None,
    executor: Executor,
) -> Iterator[Sensitivities | None]:
    """Yield the sensitivities if a pass needs them: the given file, or a computed one that is deleted afterwards.

    `kept`: the folder of finished layers, where a file that was computed before is used.
    Raises `UsageError` for a file of another model.
    """
    if Need.SENSITIVITY not in needs:
        yield None
    elif given is not None:
        found = Sensitivities.open(given)
        found.check(source.manifest.source)
        yield found
    else:
        assert calibration is not None, "_check_data comes first"
        with nullcontext(kept) if kept else sibling_directory(output) as folder:
            path = folder / "sensitivity"
            if not path.exists():
                compute_sensitivities(source.path, path, calibration, threads=threads, executor=executor)
            yield Sensitivities.open(path)


def _check_opens(path: Path, original: Path, recipe: str, records: Sequence[PassRecord]) -> None:
    """Open the graph written to `path` in ONNX Runtime. Raises `GraphError` if it cannot be opened."""
    found = unopenable(path)
    if found is None:
        return
    before = unopenable(original)
    if before is not None and not before.lacks_kernel:
        raise GraphError(f"{original}: ONNX Runtime cannot open it: {before.reason}. Re-export it.")
    if before is not None and found.lacks_kernel:
        warnings.warn(f"{path.name}: {found.reason}; {original} does not run either.", NotOpened, stacklevel=3)
        return
    names = ", ".join(record.name for record in records if record.counts)
    raise GraphError(
        f"recipe {recipe}: ONNX Runtime cannot open the graph that it produced ({found.reason}). It was changed by: "
        f"{names}. Leave a pass out, in a recipe file of your own."
    )


def _model_bytes(paths: Sequence[Path]) -> int:
    """Return the size in bytes of the ONNX files of one folder with their external data."""
    files = {name for path in paths for name in (path.name, *external_data_files(outline(path)))}
    return sum((paths[0].parent / name).stat().st_size for name in files)
