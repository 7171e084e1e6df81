"""Proving that a bundle computes what it should: a bundle against its source, another bundle, or the ONNX reference."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

from intaglio.bounds import Bounds, bounds_for
from intaglio.bundle import Bundle
from intaglio.errors import StorageError, UsageError, storage_errors
from intaglio.files import atomic_write, sha256
from intaglio.progress import step
from intaglio.runtime.inputs import InputsUsed, load_inputs
from intaglio.runtime.onnxruntime_engine import PROVIDERS
from intaglio.runtime.tensorrt_engine import LIBRARIES
from intaglio.runtime.token_inputs import load_token_inputs
from intaglio.validate import report as reports
from intaglio.validate import results
from intaglio.validate.bisect import blocks, first_beyond, is_beyond, measure_layers
from intaglio.validate.compare import Array, compare
from intaglio.validate.perplexity import perplexity as measure_perplexity
from intaglio.validate.results import LayerError, Validated, layer_error, output_error
from intaglio.validate.sides import PYTORCH, REFERENCE, Side

BASELINE = "ort-cpu"  # what runs a bundle that another one is compared with


def validate(
    bundle: str | Path,
    against: str | Path | None = None,
    data: str | Path | None = None,
    target: str = "ort-cpu",
    bisect: bool = False,
    report: str | Path | None = None,
    max_abs: float | None = None,
    cosine: float | None = None,
    samples: int = 64,
    batch_size: int = 8,
    perplexity: str | Path | None = None,
    context: int | None = None,
    stride: int | None = None,
) -> Validated:
    """Run `bundle` and what it is compared with on the same inputs, judge every output, and write a report.

    `against`: "pytorch" (the default: the checkpoint that the bundle names as its source), "reference" (this graph
    in `onnx.reference`), or a bundle, which is run on ort-cpu: another one, or this one to prove its engine for
    another target. `target`: what runs the bundle, one of `open_engine`'s or "reference". `data`: see `load_inputs`, or
    `load_token_inputs` of a decoder;
    the first `samples` of them are run, `batch_size` at a time. `bisect` looks for the first layer beyond its bound.
    The bounds are those of the bundle's dtype (`intaglio.bounds.BOUNDS`); `max_abs` and `cosine` replace them. The
    HTML and JSON reports go into the bundle, under `reports/`, or into the directory `report`.

    With `perplexity`, a UTF-8 file, nothing is judged but measured: the perplexity on that text of a model that writes,
    and with a bundle as `against` its divergence from that one; see `intaglio.validate.perplexity` for what the file
    holds, `context` and `stride`.

    Raises `UsageError`, `BundleError`, `SourceError`, `EngineError`, `StorageError`; outputs beyond their bounds do
    not raise, they give `passed=False`, and so does an output that the other end does not have.
    """
    opened = Bundle.open(bundle)
    if perplexity is not None:
        return _perplexity(opened, perplexity, against, target, context, stride, report)
    if opened.manifest.encoder is not None:
        raise UsageError(
            f"bundle {bundle}: is an encoder-decoder, whose two graphs are compared with the source model when it is "
            'exported. For how well it writes, add --perplexity FILE with lines of {"prompt": ..., "reference": ...}.'
        )
    if context is not None or stride is not None:
        raise UsageError("--context and --stride are of a perplexity. Add --perplexity FILE, or leave them out.")
    bounds = bounds_for(opened.manifest.dtype, max_abs, cosine)
    actual, expected = _sides(opened, target, against)
    _check_report(opened, report)
    candidates = _shared_values(actual, expected)
    if bisect and not candidates:
        raise UsageError(
            f"--bisect: {actual.name} and {expected.name} have no values inside their graphs in common. "
            "Run it on ort-cpu, with a bundle that names its layers."
        )
    load = load_inputs if opened.manifest.decoder is None else load_token_inputs
    feeds, used = load(opened, data, samples, batch_size)
    comparison = compare(actual.runner(), expected.runner(), feeds, bounds)
    outputs = {name: output_error(compared) for name, compared in comparison.outputs.items()}
    worst = [feeds[comparison.worst]]
    layers = _errors_by_layer(actual, expected, candidates, worst, bounds)
    first = _bisect(actual, expected, candidates, worst, bounds) if bisect else None
    not_compared = [spec.name for spec in opened.manifest.outputs if spec.name not in outputs]
    whole = results.Report(
        passed=not not_compared and all(output.passed for output in outputs.values()),
        actual=_side(actual),
        expected=_side(expected),
        outputs=outputs,
        not_compared=not_compared,
        layers=layers,
        bisected=bisect,
        first_layer_beyond=first,
        inputs=used,
        environment=reports.environment(),
        written=reports.now(),
    )
    path = _write(opened, whole, f"{target}-against-{_slug(against)}", report)
    return Validated(
        passed=whole.passed,
        outputs=outputs,
        report=str(path),
        not_compared=whole.not_compared,
        first_layer_beyond=first,
    )


def _perplexity(
    bundle: Bundle,
    text: str | Path,
    against: str | Path | None,
    target: str,
    context: int | None,
    stride: int | None,
    report: str | Path | None,
) -> Validated:
    """Measure the perplexity of a model that writes, and report it."""
    if against in (PYTORCH, REFERENCE):
        raise UsageError(f"--against {against}: a perplexity is compared with that of a bundle. Give a bundle.")
    other = None if against is None else Bundle.open(against)
    _check_report(bundle, report)
    found = measure_perplexity(bundle, text, other, target, context, stride)
    whole = results.Report(
        passed=math.isfinite(found.perplexity) and math.isfinite(found.kl_divergence or 0.0),
        actual=_side(Side(bundle, target, f"{bundle.path} on {target}")),
        expected=_side(Side(other, BASELINE, f"{other.path} on {BASELINE}")) if other else None,
        outputs={},
        not_compared=[],
        layers=[],
        bisected=False,
        first_layer_beyond=None,
        inputs=InputsUsed(str(text), sha256(Path(text)), found.tokens, found.text_tokens, found.windows),
        environment=reports.environment(),
        written=reports.now(),
        perplexity=found,
    )
    name = f"{target}-perplexity" + ("" if against is None else f"-against-{_slug(against)}")
    return Validated(
        passed=whole.passed,
        outputs={},
        report=str(_write(bundle, whole, name, report)),
        perplexity=found.perplexity,
        kl_divergence=found.kl_divergence,
        tokens=found.tokens,
        against_perplexity=found.against_perplexity,
        same_top=found.same_top,
    )


def _sides(bundle: Bundle, target: str, against: str | Path | None) -> tuple[Side, Side]:
    """The bundle and what it is compared with. Their names differ, as Polygraphy tells runners apart by them."""
    if target not in {*PROVIDERS, *LIBRARIES, REFERENCE}:
        raise UsageError(f"target {target!r}: expected one of {', '.join([*PROVIDERS, *LIBRARIES, REFERENCE])}.")
    actual = Side(bundle, target, f"{bundle.path} on {target}")
    if against is None or against == PYTORCH:
        source = bundle.manifest.source
        if not source.location or source.kind == "onnx":
            raise UsageError(
                f"bundle {bundle.path}: has no PyTorch source, it was made from {source.location or 'a graph'}. "
                "Compare it with --against reference, or --against BUNDLE."
            )
        return actual, Side(bundle, PYTORCH, f"{source.location} in PyTorch")
    if against == REFERENCE:
        if target == REFERENCE:
            raise UsageError("the ONNX reference evaluator against itself proves nothing. Choose another --target.")
        return actual, Side(bundle, REFERENCE, f"{bundle.path} in the ONNX reference evaluator")
    other = Bundle.open(against)
    if target == BASELINE and other.path.resolve() == bundle.path.resolve():
        raise UsageError(f"--against {against}: is the bundle itself. Give another one, or another --target.")
    ours, theirs = ([spec.name for spec in side.manifest.inputs] for side in (bundle, other))
    if set(ours) != set(theirs):
        raise UsageError(
            f"--against {against}: takes the inputs {', '.join(theirs)}, the bundle {', '.join(ours)}. "
            "Compare bundles of one model."
        )
    return actual, Side(other, BASELINE, f"{other.path} on {BASELINE}")


def _shared_values(actual: Side, expected: Side) -> list[str]:
    """The graph values that both sides can show, in the order that the bundle computes them."""
    known = set(expected.values())
    return [value for value in actual.values() if value in known]


def _errors_by_layer(
    actual: Side, expected: Side, candidates: list[str], feeds: list[dict[str, Array]], bounds: Bounds
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
    actual: Side, expected: Side, candidates: list[str], feeds: list[dict[str, Array]], bounds: Bounds
) -> LayerError | None:
    with step("looking for the first layer beyond its bound"):
        found = first_beyond(candidates, lambda names: measure_layers(actual, expected, names, feeds, bounds), bounds)
    return layer_error(actual.label(found[0]), *found, bounds, beyond=True) if found else None


def _side(side: Side) -> results.Side:
    files = side.bundle.manifest.files
    kept = {name: record.sha256 for name, record in files.items() if not name.startswith("reports/")}
    return results.Side(side.name, str(side.bundle.path), kept)


def _slug(against: str | Path | None) -> str:
    """`against` as a part of a file name."""
    name = PYTORCH if against is None else Path(against).absolute().name
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name) or "bundle"


def _check_report(bundle: Bundle, report: str | Path | None) -> None:
    """Find out that the report has nowhere to go before the work is done."""
    if report is None:
        if not os.access(bundle.path, os.W_OK):
            raise StorageError(f"bundle {bundle.path}: cannot be written to. Add --report DIR for the report.")
        return
    with storage_errors(Path(report)):
        try:
            Path(report).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"--report {report}: is not a directory. Choose another path.") from error


def _write(bundle: Bundle, whole: results.Report, name: str, report: str | Path | None) -> Path:
    """Write both reports; return the path of the HTML one."""
    files = {f"{name}.json": reports.to_json(whole), f"{name}.html": reports.to_html(whole).encode()}
    if report is None:
        bundle.add_files({f"reports/{file}": content for file, content in files.items()})
        return bundle.path / "reports" / f"{name}.html"
    for file, content in files.items():
        atomic_write(Path(report) / file, content)
    return Path(report) / f"{name}.html"
