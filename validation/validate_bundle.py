"""The verb `validate`: compare a bundle with its source, another bundle, or the ONNX reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from intaglio.accuracy.bounds import Bounds, given_bounds
from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import step
from intaglio.errors import UsageError
from intaglio.processes.threads import limited
from intaglio.runtime.modalities.table import modality_of
from intaglio.runtime.speech.recognizer import speech_options
from intaglio.targets import find_target
from intaglio.validation.comparison.bisect import blocks, first_beyond, is_beyond, measure_layers
from intaglio.validation.comparison.changes import changes_between
from intaglio.validation.comparison.compare import Array, compare
from intaglio.validation.comparison.compared_models import BASELINE, PYTORCH, REFERENCE, ComparedModel, is_checkpoint
from intaglio.validation.comparison.rules import rules_for
from intaglio.validation.measures.measures import judge
from intaglio.validation.measures.task_measure import measure_for
from intaglio.validation.reports import report as reports
from intaglio.validation.reports import results
from intaglio.validation.reports.files import check_report, recorded_side, slug, write_report
from intaglio.validation.reports.results import LayerError, Validated, layer_error, output_error
from intaglio.validation.score import score, score_speech


def validate(
    bundle: str | Path,
    against: str | Path | None = None,
    data: str | Path | None = None,
    target: str = "ort-cpu",
    bisect: bool = False,
    report: str | Path | None = None,
    bound: Mapping[str, float] | None = None,
    max_abs: float | None = None,
    min_cosine: float | None = None,
    max_perplexity_rise: float | None = None,
    samples: int = 64,
    batch_size: int = 8,
    perplexity: str | Path | None = None,
    context: int | None = None,
    stride: int | None = None,
    wer: str | Path | None = None,
    beam: int | None = None,
    language_model: str | Path | None = None,
    language_model_weight: float | None = None,
    word_bonus: float | None = None,
    threads: int | None = None,
) -> Validated:
    """Run `bundle` and its reference on the same inputs, judge the differences, and write a report.

    `against`: "pytorch" (the default: the checkpoint that the bundle was exported from), the folder of this checkpoint,
    "reference" (this graph in `onnx.reference`), or a bundle, which runs on ort-cpu: another one, or this one to check
    its engine for another target. `target`: the target that runs the bundle, one of `open_engine`'s or "reference".
    `data`: see `intaglio.runtime.modalities`, where each modality has a file; the first `samples` of them are run, in
    batches of `batch_size`. `bisect` searches for the first layer beyond its bound.

    The verdict depends on the passes that only one side had (`intaglio.validation.comparison.changes`). If both
    compute the same, every value of every output has a bound; if one approximates the other, the task's measures
    have bounds (`intaglio.validation.measures.measures`). `bound` maps measures to bounds that replace the defaults
    in `intaglio.accuracy.bounds`; `max_abs`, `min_cosine` and `max_perplexity_rise` (percent) are short forms. The
    HTML and JSON reports are written to the bundle, under `reports/`, or to the directory `report`.

    With `perplexity`, a UTF-8 file, a generative model is scored on that text, and judged by its difference from
    the bundle `against`; see `intaglio.validation.scores.perplexity` for the file, `context` and `stride`. Without
    `against` it is measured but not judged. An encoder-decoder is always scored this way: without a file, on the
    output of the bundle `against`.

    With `wer`, a list of recordings and their texts, the word error rate of a speech recogniser is measured, and judged
    by its difference from that of the bundle `against`, or by the bounds on `wer` and `cer`. Both decode greedily, or
    with a beam search as `run` has it (`beam` to `word_bonus`). See `intaglio.validation.scores.word_errors`.

    `threads`: processor threads of ONNX Runtime, by default all.

    Raises `UsageError`, `BundleError`, `SourceError`, `EngineError`, `StorageError`. Outputs beyond their bounds do not
    raise but return `passed=False`, and so does an output that the other side does not have.
    """
    with limited(threads):
        opened = Bundle.open(bundle)
        given = given_bounds(bound, max_abs, min_cosine, max_perplexity_rise)
        if wer is not None:
            others = {
                "data": data,
                "bisect": bisect or None,
                "perplexity": perplexity,
                "context": context,
                "stride": stride,
            }
            if unexpected := [f"--{name}" for name, value in others.items() if value is not None]:
                raise UsageError(f"--wer transcribes recordings: leave out {', '.join(unexpected)}.")
            options = speech_options(beam, language_model, language_model_weight, word_bonus)
            return score_speech(opened, wer, against, target, report, given, options)
        if any(value is not None for value in (beam, language_model, language_model_weight, word_bonus)):
            raise UsageError("--beam and --language-model decode recordings. Add --wer FILE, or leave them out.")
        if perplexity is not None or opened.manifest.encoder is not None:
            if bisect:
                raise UsageError("--bisect compares values inside two graphs; scoring a text does not. Leave it out.")
            text = data if perplexity is None else perplexity
            return score(opened, text, against, target, context, stride, report, given)
        if context is not None or stride is not None:
            raise UsageError("--context and --stride need a perplexity. Add --perplexity FILE, or leave them out.")
        actual, expected = _sides(opened, target, against)
        measure = measure_for(opened.manifest)
        rules = rules_for(changes_between(opened.manifest, expected.manifest), measure.names, given)
        check_report(opened, report)
        candidates = _shared_values(actual, expected)
        if bisect and not candidates:
            raise UsageError(
                f"--bisect: {actual.name} and {expected.name} have no common values inside their graphs. "
                "Run it on ort-cpu, with a bundle that names its layers."
            )
        feeds, used = modality_of(opened.manifest).load(opened, data, samples, batch_size)
        comparison = compare(
            actual.runner(), expected.runner(), feeds, rules.values, measure=measure if rules.limits else None
        )
        outputs = {name: output_error(compared) for name, compared in comparison.outputs.items()}
        measures = judge(measure.results, rules.limits)
        worst = [feeds[comparison.worst]]
        layers = _errors_by_layer(actual, expected, candidates, worst, rules.values)
        first = _bisect(actual, expected, candidates, worst, rules.values) if bisect else None
        not_compared = [spec.name for spec in opened.manifest.outputs if spec.name not in outputs]
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
            written=reports.now(),
        )
        return write_report(opened, whole, f"{target}-against-{slug(against)}", report)


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
