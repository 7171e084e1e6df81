"""The report of a validation, as JSON and as one self-contained HTML file."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from intaglio.display.markup import Markup, fill, join
from intaglio.validation.measures.measures import LABELS
from intaglio.validation.reports import page
from intaglio.validation.reports.pictures import error_histogram, layer_errors
from intaglio.validation.reports.results import LayerError, OutputError, Report

NUMBERS = {  # columns
    "substituted", "deleted", "inserted", "word error rate", "character error rate", "real-time factor", "errors",
    "largest error", "bound", "value", "mean error", "relative", "cosine", "floor", "NaN", "Inf",
}  # fmt: skip
LIBRARIES = ("intaglio", "polygraphy", "numpy", "onnx", "onnxruntime", "torch", "transformers", "tensorrt-rtx")


def to_json(report: Report) -> bytes:
    """The report as indented JSON; null stands for infinity."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_html(report: Report) -> str:
    """The report as a page; every name in it is escaped."""
    held = [*(output.passed for output in report.outputs.values()), *(measured.passed for measured in report.measures)]
    summary = f"{sum(held)} of {len(held)} bounds held"
    if report.perplexity:
        summary = f"perplexity {report.perplexity.perplexity:.4f} over {report.perplexity.tokens} tokens"
    if report.word_errors:
        summary = f"word error rate {report.word_errors.actual.wer:.2f} % of {report.word_errors.words} words"
    verdict = ("PASSED" if report.passed else "FAILED") if report.judged or not report.passed else "MEASURED"
    sections = [
        _measures(report),
        _perplexity(report),
        _word_errors(report),
        _outputs(report),
        _findings(report),
        _histograms(report),
        _layers(report.layers),
        _inputs(report),
        _environment(report),
        _files(report),
    ]
    return page.page(
        verdict,
        title=Path(report.actual.bundle).name,
        heading=report.actual.name,
        comparison=f"compared with {report.expected.name}" if report.expected else "not compared with another model",
        summary=f"{summary} · {report.written}",
        sections=sections,
    )


def environment() -> dict[str, str]:
    """The environment of the measurements: versions of the libraries, operating system, processor."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    threads = len(os.sched_getaffinity(0))
    return found | {"system": platform.platform(), "processor": f"{processor()}, {threads} threads"}


def processor() -> str:
    """The name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _measures(report: Report) -> Markup:
    """The measures that decide the verdict, and why."""
    if not report.judged:
        return Markup("")
    head = ["measure", "verdict", "value", "bound", "reason"]
    rows = [
        [
            page.cell(LABELS[each.name], ""),
            page.cell("held" if each.passed else "broken", "passed" if each.passed else "failed"),
            page.cell(f"{each.value:.6g}", "number"),
            page.cell(f"{'≥' if each.at_least else '≤'} {each.bound:g}", "number"),
            page.cell(each.reason, ""),
        ]
        for each in report.measures
    ]
    note = fill('<p class="soft">Bounds were chosen for: $changes.</p>', changes=report.changes)
    return page.section("What judges", join([page.table(head, rows, NUMBERS), note]) if rows else note)


def _perplexity(report: Report) -> Markup:
    found = report.perplexity
    if found is None:
        return Markup("")
    pairs = {"perplexity": f"{found.perplexity:.4f}"}
    if found.against_perplexity is not None:
        pairs["of the other model"] = f"{found.against_perplexity:.4f}"
    if found.kl_divergence is not None:
        pairs["KL divergence from it"] = f"{found.kl_divergence:.6f} nats a token"
    if found.same_top is not None:
        pairs["same most probable token"] = f"{100 * found.same_top:.2f} %"
    pairs["tokens scored"] = f"{found.tokens} of {found.text_tokens}"
    if found.context is None:
        pairs["texts, each after its source"] = f"{found.windows}"
    else:
        pairs["windows"] = f"{found.windows} of at most {found.context} tokens, {found.stride} apart"
    note = "Each token is scored once. Its divergence is how far the model's distribution is from the other model's."
    return page.section("Perplexity", join([page.pairs(pairs), fill('<p class="soft">$note</p>', note=note)]))


def _word_errors(report: Report) -> Markup:
    found = report.word_errors
    if found is None:
        return Markup("")
    head = ["", "word error rate", "substituted", "deleted", "inserted", "character error rate", "real-time factor"]
    sides = {"this model": found.actual, **({"the other model": found.expected} if found.expected else {})}
    rows = [
        [
            page.cell(name, ""),
            page.cell(f"{side.wer:.2f} %", "number"),
            *(page.cell(str(count), "number") for count in (side.substitutions, side.deletions, side.insertions)),
            page.cell(f"{side.cer:.2f} %", "number"),
            page.cell("–" if side.real_time_factor is None else f"{side.real_time_factor:.4f}", "number"),
        ]
        for name, side in sides.items()
    ]
    note = (
        f"Of {found.words} words and {found.characters} characters in {found.recordings} recordings. Both texts are in "
        "lower case, with apostrophes, without punctuation."
    )
    worst = [
        [page.cell(each.recording, "code"), page.cell(f"{each.errors} of {each.words}", "number")]
        + [page.cell(text, "") for text in (each.text, each.transcript)]
        for each in found.actual.worst
    ]
    listed = [page.table(["recording", "errors", "text", "transcript"], worst, NUMBERS)] if worst else []
    return page.section(
        "Words", join([page.table(head, rows, NUMBERS), fill('<p class="soft">$note</p>', note=note), *listed])
    )


def _outputs(report: Report) -> Markup:
    if report.perplexity or report.word_errors:
        return Markup("")
    head = ["output", "verdict", "largest error", "bound", "mean error", "relative", "cosine", "floor", "NaN", "Inf"]
    rows = [
        [
            page.cell(name, "code"),
            page.cell("within" if output.passed else "; ".join(output.broken), "passed" if output.passed else "failed"),
            page.number(output.max_abs),
            fill('<td class="number" title="$reason">$bound</td>', reason=output.reason, bound=output.bound),
            page.number(output.mean_abs),
            page.number(output.relative),
            page.cell(f"{output.cosine:.7f}", "number"),
            page.cell("–" if output.cosine_floor is None else f"{output.cosine_floor:g}", "number"),
            page.cell(str(output.nans), "number"),
            page.cell(str(output.infinities), "number"),
        ]
        for name, output in report.outputs.items()
    ]
    note = "Errors are in the unit of the output; relative is the largest error by the largest value that was expected."
    if report.not_compared:
        note += f" Not compared, as the other side has no such output: {', '.join(report.not_compared)}."
    return page.section(
        "Outputs", join([page.table(head, rows, NUMBERS), fill('<p class="soft">$note</p>', note=note)])
    )


def _findings(report: Report) -> Markup:
    if not report.bisected:
        return Markup("")
    layer = report.first_layer_beyond
    if layer is None:
        return page.section("First layer beyond its bound", Markup('<div class="card">None: all are within.</div>'))
    text = fill(
        '<div class="card finding"><h3>$layer</h3><p>value <code>$value</code>: relative error $relative, '
        "bound $bound; largest error $max_abs, cosine $cosine.</p></div>",
        layer=layer.layer,
        value=layer.value,
        relative=f"{layer.relative:.3g}",
        bound=f"{layer.bound:g}",
        max_abs=f"{layer.max_abs:.3g}",
        cosine=f"{layer.cosine:.7f}",
    )
    return page.section("First layer beyond its bound", text)


def _histograms(report: Report) -> Markup:
    def picture(name: str, output: OutputError) -> Markup:
        note = f"{output.values} values, {output.zeros} of them without any error"
        template = '<div class="card"><h3>$name</h3>$picture<p class="soft">$note</p></div>'
        return fill(template, name=name, picture=error_histogram(name, output), note=note)

    if not report.outputs:
        return Markup("")
    pictures = join(picture(name, output) for name, output in report.outputs.items())
    return page.section("How large the errors are", fill('<div class="pictures">$pictures</div>', pictures=pictures))


def _layers(layers: Sequence[LayerError]) -> Markup:
    if not layers:
        return Markup("")
    note = "Largest error by the largest value expected, layer by layer in execution order, on the worst batch."
    body = fill('<div class="card">$picture<p class="soft">$note</p></div>', picture=layer_errors(layers), note=note)
    return page.section("Where the error comes from", body)


def _inputs(report: Report) -> Markup:
    used = report.inputs
    count = f"{used.samples} of {used.available} samples in {used.batches} batches"
    if report.perplexity:
        count = f"{report.perplexity.text_tokens} tokens"
    if report.word_errors:
        count = f"{report.word_errors.recordings} recordings, {report.word_errors.seconds:.1f} seconds"
    return page.section("Inputs", page.pairs({"source": used.source, "used": count, "SHA-256": used.sha256}))


def _environment(report: Report) -> Markup:
    return page.section("Environment", page.pairs(report.environment))


def _files(report: Report) -> Markup:
    sides = [report.actual]
    if report.expected and report.expected.bundle != report.actual.bundle:
        sides.append(report.expected)
    details = [
        fill(
            '<details class="card"><summary>$bundle: $count files</summary>$table</details>',
            bundle=side.bundle,
            count=len(side.files),
            table=page.pairs(side.files),
        )
        for side in sides
    ]
    return page.section("SHA-256 of the bundle's files", join(details))
