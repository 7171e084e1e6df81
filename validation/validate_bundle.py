"""The verb `validate`: compare a bundle with its source, another bundle, or the ONNX reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from intaglio.accuracy.default_bounds import Bounds, given_bounds
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.executors.executor import OPTION as EXECUTOR
from intaglio.executors.opening import check_target
from intaglio.executors.opening import opened as opened_executor
from intaglio.processes.threads import bounded
from intaglio.runtime.modalities.table import modality_of
from intaglio.runtime.speech.recognizer import speech_options
from intaglio.targets import DEFAULT, find_target
from intaglio.validation.comparison.bisect import blocks, first_beyond, is_beyond, measure_layers
from intaglio.validation.comparison.changes import changes_between
from intaglio.validation.comparison.compare import Array, compare
from intaglio.validation.comparison.compare_in_workers import compare_in_workers
from intaglio.validation.comparison.compared_models import BASELINE, PYTORCH, REFERENCE, ComparedModel, is_checkpoint
from intaglio.validation.comparison.verdict_rules import rules_for
from intaglio.validation.measures.measures import judge
from intaglio.validation.measures.task_measure import measure_for
from intaglio.validation.options import BoundOptions, OutputOptions, RecordingOptions, TextOptions, ValidationOptions
from intaglio.validation.reports import report as reports
from intaglio.validation.reports import results
from intaglio.validation.reports.files import check_report, recorded_side, slug, write_report
from intaglio.validation.reports.page import now
from intaglio.validation.reports.results import LayerError, Validated, layer_error, output_error
from intaglio.validation.score import score, score_speech


def validate(
    bundle: str | Path | Bundle,
    against: str | Path | None = None,
    data: str | Path | None = None,
    target: str = DEFAULT,
    report: str | Path | None = None,
    threads: int | None = None,
    executor: str | Executor = INLINE.name,
    **options: Unpack[ValidationOptions],
) -> Validated:
    """Run `bundle` and its reference on the same inputs, judge the differences, and write a report.

    `against`: "pytorch" (the default: the checkpoint that the bundle was exported from), the folder of this checkpoint,
    "reference" (this graph in `onnx.reference`), or a bundle, which runs on ort-cpu: another one, or this one to check
    its engine for another target. `target`: the target that runs the bundle, one of `open_engine`'s or "reference".
    `data`: the file of inputs, see `intaglio.runtime.modalities`, where each modality has a file.
    `options`: what is compared, and the bounds; see `ValidationOptions`. With `perplexity`, or for an encoder-decoder,
    a text is scored (`score`); with `wer`, recordings are transcribed (`score_speech`); else all outputs are compared.

    The verdict depends on the passes that only one side had (`intaglio.validation.comparison.changes`). If both
    compute the same, every value of every output has a bound; if one approximates the other, the task's measures
    have bounds (`intaglio.validation.measures.measures`). The HTML and JSON reports are written to the bundle, under
    `reports/`, or to the directory `report`. `threads`: processor threads of ONNX Runtime, by default all.
    `executor`: where the inputs are run, an open one or the name of one, as in `intaglio.compress`. The numbers are the
    same with each. Workers run "ort-cpu" and "reference", and need bundles and recordings at the same paths.

    Raises `UsageError`, `BundleError`, `SourceError`, `EngineError`, `StorageError`. Outputs beyond their bounds do not
    raise but return `passed=False`, and so does an output that the other side does not have.
    """
    if unknown := options.keys() - ValidationOptions.__annotations__.keys():
        raise TypeError(f"validate() has no option {', '.join(sorted(unknown))}")
    given = given_bounds(**_only(BoundOptions, options))
    outputs, text, recordings = (_only(each, options) for each in (OutputOptions, TextOptions, RecordingOptions))
    check_target(executor, target, others=[REFERENCE])
    with bounded(threads), opened_executor(executor) as workers:
        opened = Bundle.open(bundle)
        if recordings.get("wer") is not None:
            others = {"data": data, "bisect": outputs.get("bisect"), **text}
            if unexpected := [f"--{name}" for name, value in others.items() if value not in (None, False)]:
                raise UsageError(f"--wer transcribes recordings: leave out {', '.join(unexpected)}.")
            wer = recordings.pop("wer")
            return score_speech(opened, wer, against, target, report, given, speech_options(**recordings), workers)
        if any(value is not None for value in recordings.values()):
            raise UsageError("--beam and --language-model decode recordings. Add --wer FILE, or leave them out.")
        if opened.manifest.transcriber is not None:
            raise UsageError(
                f"{opened.path}: of an encoder-decoder for recordings the transcripts are validated, its outputs were "
                "compared by the export. Add --wer LIST."
            )
        perplexity = text.pop("perplexity", None)
        if perplexity is not None or opened.manifest.encoder is not None:
            if outputs.get("bisect"):
                raise UsageError("--bisect compares values inside two graphs; scoring a text does not. Leave it out.")
            scored = data if perplexity is None else perplexity
            return score(opened, scored, against, target, report, given, workers, **text)
        if any(value is not None for value in text.values()):
            raise UsageError(
                "--context, --stride and --cache-bits are of a perplexity. Add --perplexity FILE, or leave them out."
            )
        return compare_outputs(opened, against, data, target, report, given, workers, **outputs)


def _check_source(executor: Executor, expected: ComparedModel) -> None:
    """Raise `UsageError` for a source checkpoint: PyTorch rounds otherwise with another number of threads."""
    if executor is not INLINE and expected.kind == PYTORCH:
        raise UsageError(
            f"{EXECUTOR} {executor.name}: workers run bundles, not {expected.name}. Add --against BUNDLE or --against "
            "reference, or leave the option out."
        )


def _only(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """The `options` that `kind` has."""
    return {name: value for name, value in options.items() if name in kind.__annotations__}


def compare_outputs(
    bundle: Bundle,
    against: str | Path | None,
    data: str | Path | None,
    target: str,
    report: str | Path | None,
    given: Mapping[str, float],
    executor: Executor = INLINE,
    *,
    bisect: bool = False,
    samples: int = 64,
    batch_size: int = 8,
) -> Validated:
    """Compare all outputs of `bundle` and its reference, and write the report. For the arguments see `validate`."""
    actual, expected = _sides(bundle, target, against)
    _check_source(executor, expected)
    measure = measure_for(bundle.manifest)
    rules = rules_for(changes_between(bundle.manifest, expected.manifest), measure.names, given)
    check_report(bundle, report)
    candidates = _shared_values(actual, expected)
    if bisect and not candidates:
        raise UsageError(
            f"--bisect: {actual.name} and {expected.name} have no common values inside their graphs. "
            "Run it on ort-cpu, with a bundle that names its layers."
        )
    feeds, used = modality_of(bundle.manifest).load(bundle, data, samples, batch_size)
    judging = measure if rules.limits else None
    if executor is INLINE:
        comparison = compare(actual.runner(), expected.runner(), feeds, rules.values, measure=judging)
    else:
        comparison = compare_in_workers(actual, expected, feeds, rules.values, judging, executor)
    outputs = {name: output_error(compared) for name, compared in comparison.outputs.items()}
    measures = judge(measure.results, rules.limits)
    worst = [feeds[comparison.worst]]
    layers = _errors_by_layer(actual, expected, candidates, worst, rules.values)
    first = _bisect(actual, expected, candidates, worst, rules.values) if bisect else None
    not_compared = [spec.name for spec in bundle.manifest.outputs if spec.name not in outputs]
    whole = results.Report(
        passed=not not_compared
        and all(output.passed for output in outputs.values())
        and all(measured.passed for measured in measures),
        judged=True,
        changes=rules.changes.reason,
        measures=measures,
        actual=recorded_side(actual),
        expected=recorded_side(expected),
        outputs=outputs,
        not_compared=not_compared,
        layers=layers,
        bisected=bisect,
        first_layer_beyond=first,
        inputs=used,
        environment=reports.environment(),
        written=now(),
    )
    return write_report(bundle, whole, f"{target}-against-{slug(against)}", report)


def _sides(bundle: Bundle, target: str, against: str | Path | None) -> tuple[ComparedModel, ComparedModel]:
    """The bundle and its reference. Their names differ, since Polygraphy identifies runners by name."""
    if target != REFERENCE:
        find_target(target, others=[REFERENCE])
    actual = ComparedModel(bundle, target, f"{bundle.path} on {target}")
    if against is None or against == PYTORCH:
        source = bundle.manifest.source
        if not source.location or source.kind == "onnx":
            raise UsageError(
                f"bundle {bundle.path}: has no PyTorch source, it was made from {source.location or 'a graph'}. "
                "Compare it with --against reference, or --against BUNDLE."
            )
        # A manifest may name any checkpoint: the hub is contacted only if the user asks for the source.
        return actual, ComparedModel(bundle, PYTORCH, f"{source.location} in PyTorch", download=against == PYTORCH)
    if against == REFERENCE:
        if target == REFERENCE:
            raise UsageError("--against reference: the target is the same. Choose another --target.")
        return actual, ComparedModel(bundle, REFERENCE, f"{bundle.path} in the ONNX reference evaluator")
    if is_checkpoint(Path(against)):
        return actual, ComparedModel(bundle, PYTORCH, f"{against} in PyTorch", checkpoint=Path(against))
    other = Bundle.open(against)
    if target == BASELINE and other.path.resolve() == bundle.path.resolve():
        raise UsageError(f"--against {against}: is the bundle itself. Give another one, or another --target.")
    ours, theirs = ([spec.name for spec in side.manifest.inputs] for side in (bundle, other))
    if set(ours) != set(theirs):
        raise UsageError(
            f"--against {against}: has the inputs {', '.join(theirs)}, the bundle {', '.join(ours)}. "
            "Compare bundles of the same model."
        )
    return actual, ComparedModel(other, BASELINE, f"{other.path} on {BASELINE}")


def _shared_values(actual: ComparedModel, expected: ComparedModel) -> list[str]:
    """The graph values that both sides can return, in the bundle's execution order."""
    known = set(expected.values())
    return [value for value in actual.values() if value in known]


def _errors_by_layer(
    actual: ComparedModel, expected: ComparedModel, candidates: list[str], feeds: list[dict[str, Array]], bounds: Bounds
) -> list[LayerError]:
    """The errors of the bundle's block-level layers, in execution order."""
    named = blocks(actual.bundle.manifest.layers)
    if not (names := [value for value in named if value in set(candidates)]):
        return []
    with step("measuring the layers"):
        differences = measure_layers(actual, expected, names, feeds, bounds)
    return [
        layer_error(named[name], name, difference, bounds, is_beyond(difference, bounds))
        for name, difference in differences.items()
    ]


def _bisect(
    actual: ComparedModel, expected: ComparedModel, candidates: list[str], feeds: list[dict[str, Array]], bounds: Bounds
) -> LayerError | None:
    with step("looking for the first layer beyond its bound"):
        found = first_beyond(candidates, lambda names: measure_layers(actual, expected, names, feeds, bounds), bounds)
    return layer_error(actual.label(found[0]), *found, bounds, beyond=True) if found else None
