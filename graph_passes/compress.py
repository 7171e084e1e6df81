"""The verb `compress`: a bundle and a recipe become a new bundle."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import CheckerPass

from intaglio.bundle import Bundle, Manifest, PassRecord, create, tensor_spec
from intaglio.errors import GraphError, UsageError, one_line
from intaglio.files import check_output_directory
from intaglio.graph_passes.calibrate import RECORD
from intaglio.graph_passes.calibration import OPTION, CalibrationData
from intaglio.graph_passes.contract import (
    CalibratedPass,
    CompensatingPass,
    Counts,
    Pass,
    SensitivePass,
    compresses_weights,
    needs_calibration,
    needs_sensitivities,
)
from intaglio.graph_passes.graphs import all_nodes, all_values, infer_shapes
from intaglio.graph_passes.integer.audit_integer_only import AuditIntegerOnly
from intaglio.graph_passes.recipes import load_recipe
from intaglio.graph_passes.weight_share import LeftWeight, weight_share
from intaglio.model_file import external_data_files, load, outline, save
from intaglio.plugins import custom_operators
from intaglio.progress import step
from intaglio.sensitivity_file import OPTION as SENSITIVITY
from intaglio.sensitivity_file import Sensitivities
from intaglio.threads import bounded
from intaglio.version import __version__


class Compressed(msgspec.Struct):
    """What `compress` did: the passes with their counts, and the bytes of graphs and weights before and after.

    `untouched` are the graphs that the recipe left as they are: the encoder of an encoder-decoder.

    Of the graph that the recipe went over, `share_compressed` is the part of the elements of its linear layers' weights
    and its embedding tables that is compressed, `left` what is not, and `left_unasked` the part of the linear layers'
    weights alone that is not although no option of a pass says so. None for recipes that compress no weights.
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
) -> Compressed:
    """Apply the passes of `recipe` (a name or a YAML file) to `bundle`, and write the result to `output`.

    The tokenizer's files and the manifest are taken over; engines and reports are not, being of the old graph. Of an
    encoder-decoder the passes go over the decoder, and its encoder is taken over as it is.
    `calibration` is what passes observe activations on: a UTF-8 file with one text per line, or an .npz file of
    arrays by input name; it must be given if and only if a pass of the recipe needs it. `sensitivity` is the file that
    `intaglio.training.sensitivity` made of this bundle, or of another one of the same checkpoint, under the same
    condition. `allow_float` leaves what an integer-only recipe cannot make integer in floating point, instead of
    stopping there. `bits` and `group_size` stand for the options of these names of every pass that has them.
    `threads`: the most that the passes take, by default all processors that this process may use.
    Raises `BundleError`, `EngineError`, `GraphError`, `UsageError`, `StorageError`; nothing is left at `output` then.
    """
    name, passes = load_recipe(recipe, {"bits": bits, "group_size": group_size})
    if allow_float:
        passes = allowing_float(name, passes)
    check_calibration(name, passes, calibration)
    check_sensitivity(name, passes, sensitivity)
    check_output_directory(Path(output), force)
    with step("reading"):
        source = Bundle.open(bundle)
        data = None if calibration is None else CalibrationData.open(calibration, source)
        weighting = None if sensitivity is None else Sensitivities.open(sensitivity)
        if weighting is not None:
            weighting.check(source.manifest.source)
        model = load(source.model_path, mapped=True)
        check(model, f"{source.model_path} holds")
        before = model_bytes(source.graph_paths)
    records, asked, share = [], set[str](), None
    with bounded(threads):
        for graph_pass in passes:
            model, counts = apply(graph_pass, model, data, weighting)
            options = dataclasses.asdict(graph_pass)  # type: ignore[call-overload]
            records.append(PassRecord(graph_pass.name, options, counts.rewritten, counts.reasons, counts.layers))
            asked |= counts.asked
            if compresses_weights(graph_pass):
                share = weight_share(model, asked)  # before a later pass writes operators out in others
    with step("checking"):
        infer_shapes(model)
        check(model, "the passes left", "Leave a pass out.")
    with step("writing"), create(output, force) as draft:
        draft.copy_companions(source)
        draft.manifest = manifest(source.manifest, model, records)
        save(model, draft.model_path, beside=source.encoder_data)
        after = model_bytes([draft.path / graph.file for graph in source.manifest.graphs])
    untouched = [graph.file for graph in source.manifest.graphs[1:]]
    done = Compressed(str(output), name, records, before, after, untouched)
    if share is not None:
        done.share_compressed, done.left, done.left_unasked = share.compressed, share.left, share.left_unasked
    return done


def allowing_float(recipe: str, passes: Sequence[Pass]) -> list[Pass]:
    """The passes, where the one that proves a graph integer-only only reports. Raises `UsageError` without one."""
    if not any(isinstance(graph_pass, AuditIntegerOnly) for graph_pass in passes):
        raise UsageError(f"--allow-float: recipe {recipe} is not integer-only anyway. Leave the option out.")
    return [AuditIntegerOnly(allow_float=True) if isinstance(each, AuditIntegerOnly) else each for each in passes]


def check_calibration(recipe: str, passes: Sequence[Pass], calibration: str | Path | None) -> None:
    """Raise `UsageError` where a pass lacks calibration data, or no pass takes those that were given."""
    needing = [graph_pass.name for graph_pass in passes if needs_calibration(graph_pass)]
    if needing and calibration is None:
        raise UsageError(f"recipe {recipe}: pass {needing[0]} needs real text. Give {OPTION} FILE (one text per line).")
    if not needing and calibration is not None:
        raise UsageError(f"{OPTION} {calibration}: no pass of recipe {recipe} needs it. Leave it out.")


def check_sensitivity(recipe: str, passes: Sequence[Pass], sensitivity: str | Path | None) -> None:
    """Raise `UsageError` where a pass lacks sensitivities, or no pass takes those that were given."""
    needing = [graph_pass.name for graph_pass in passes if needs_sensitivities(graph_pass)]
    if needing and sensitivity is None:
        raise UsageError(
            f"recipe {recipe}: pass {needing[0]} needs to know how sensitive the loss is to each weight. Make a file "
            f"with: intaglio sensitivity BUNDLE --calibration TEXT -o FILE, and give it with {SENSITIVITY} FILE."
        )
    if not needing and sensitivity is not None:
        raise UsageError(f"{SENSITIVITY} {sensitivity}: no pass of recipe {recipe} needs it. Leave it out.")


def apply(
    graph_pass: Pass,
    model: ir.Model,
    data: CalibrationData | None = None,
    sensitivities: Sensitivities | None = None,
) -> tuple[ir.Model, Counts]:
    """Run one pass; the rewritten model, and what was done."""
    if isinstance(graph_pass, CompensatingPass):
        return graph_pass(model, sensitivities, data)
    if isinstance(graph_pass, SensitivePass):
        return graph_pass(model, sensitivities)
    if isinstance(graph_pass, CalibratedPass):
        assert data is not None, "check_calibration comes first"
        return graph_pass(model, data)
    with step(graph_pass.name):
        return graph_pass(model)


def check(model: ir.Model, what: str, way_out: str = "Re-export it.") -> None:
    """Run ONNX's checker on the graph without its large weights; `what` has it. Raises `GraphError`."""
    try:
        CheckerPass()(model)
    except (onnx.checker.ValidationError, ir.passes.PassError) as error:
        cause = error.__cause__ or error
        reason = one_line(cause, 300)
        raise GraphError(f"{what} a graph that ONNX's checker refuses: {reason}. {way_out}") from error


def manifest(old: Manifest, model: ir.Model, records: list[PassRecord]) -> Manifest:
    """The manifest of the rewritten graph."""
    values = {value.name for value in all_values(model)}
    return msgspec.structs.replace(
        old,
        created_by=f"intaglio {__version__}",
        dtype=_weight_dtype(model) or old.dtype,
        inputs=[tensor_spec(value) for value in model.graph.inputs if not value.is_initializer()],
        outputs=[tensor_spec(value) for value in model.graph.outputs],
        layers={path: value for path, value in old.layers.items() if value in values},
        passes=[*old.passes, *records],
        custom_operators=custom_operators(all_nodes(model)),
        calibration=model.meta.get(RECORD, old.calibration),
        engines=[],
    )


def _weight_dtype(model: ir.Model) -> str | None:
    """The dtype that most of the weights have, by number of elements: a floating-point one, or int8."""
    elements: Counter[str] = Counter()
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and (tensor.dtype.is_floating_point() or tensor.dtype == ir.DataType.INT8):
            elements[tensor.dtype.numpy().name] += tensor.size
    return max(elements, key=lambda name: elements[name], default=None)


def model_bytes(paths: Sequence[Path]) -> int:
    """The size of the ONNX files of one folder with their external data."""
    files = {name for path in paths for name in (path.name, *external_data_files(outline(path)))}
    return sum((paths[0].parent / name).stat().st_size for name in files)
