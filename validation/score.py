"""Score a model alone, or beside another: its perplexity on a text, or its word error rate on recordings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from intaglio.accuracy.default_bounds import Limit, check_given, quality_limits
from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.executors.executor import INLINE, Executor
from intaglio.files.hashes import sha256
from intaglio.runtime.speech.recognizer import SpeechOptions
from intaglio.runtime.text.inputs import InputsUsed
from intaglio.validation.comparison.changes import changes_between
from intaglio.validation.comparison.compared_models import BASELINE, PYTORCH, REFERENCE, ComparedModel
from intaglio.validation.measures.measures import judge
from intaglio.validation.reports import report as reports
from intaglio.validation.reports import results
from intaglio.validation.reports.files import check_report, recorded_side, slug, write_report
from intaglio.validation.reports.page import now
from intaglio.validation.reports.results import Validated
from intaglio.validation.scores.perplexity import SCORED, Perplexity, perplexity
from intaglio.validation.scores.word_errors import MEASURES, RISES, word_errors


def score(
    bundle: Bundle,
    text: str | Path | None,
    against: str | Path | None,
    target: str,
    report: str | Path | None,
    given: Mapping[str, float],
    executor: Executor = INLINE,
    *,
    context: int | None = None,
    stride: int | None = None,
    cache_bits: int | None = None,
) -> Validated:
    """Score `bundle` on the file `text`, compare it with the bundle `against` if given, and write the report.

    For arguments and exceptions see `validate`; `given` are the user's bounds.
    """
    other, changes = _other(bundle, text, against), None
    if other is not None:
        changes = changes_between(bundle.manifest, other.manifest)
        check_given(given, SCORED)
    elif given:
        raise UsageError("a bound needs a model to compare with. Add --against BUNDLE, or leave the bounds out.")
    check_report(bundle, report)
    scored = "perplexity" if cache_bits is None else f"perplexity-cache-bits-{cache_bits}"
    found = perplexity(bundle, text, other, target, context, stride, cache_bits, executor)  # refuses other bits
    changes = changes and changes.with_cache(cache_bits)
    measures = judge(found.compared, quality_limits(changes.effect, SCORED, given)) if changes else []
    whole = results.Report(
        passed=math.isfinite(found.perplexity) and all(each.passed for each in measures),
        judged=changes is not None,
        changes=changes.reason if changes else "",
        measures=measures,
        actual=_actual(bundle, target, cache_bits),
        expected=_expected(other),
        inputs=_inputs(found, text),
        environment=reports.environment(),
        written=now(),
        perplexity=found,
    )
    return write_report(bundle, whole, _name(target, scored, against), report)


def score_speech(
    bundle: Bundle,
    recordings: str | Path,
    against: str | Path | None,
    target: str,
    report: str | Path | None,
    given: Mapping[str, float],
    speech: SpeechOptions | None = None,
    executor: Executor = INLINE,
) -> Validated:
    """Measure the word error rate of `bundle` on a list of recordings, and that of the bundle `against` if given.

    The passes of one of the two decide how the difference is judged; without `against`, only bounds in `given` count.
    For arguments and exceptions see `validate`.
    """
    if against in (PYTORCH, REFERENCE):
        raise UsageError(f"--wer: --against {against} cannot transcribe. Give a bundle, or leave it out.")
    other = None if against is None else Bundle.open(against)
    check_given(given, MEASURES if other is None else (*RISES, *MEASURES))
    check_report(bundle, report)
    limits = {name: Limit(value, "given by the user") for name, value in given.items()}
    reason = "bounds given by the user" if given else ""
    if other is not None:
        changes = changes_between(bundle.manifest, other.manifest)
        limits |= quality_limits(changes.effect, ["wer_rise"], given)
        reason = changes.reason
    path = Path(recordings)
    found = word_errors(bundle, path, other, target, speech, executor)
    measures = judge(found.measured, limits)
    whole = results.Report(
        passed=all(each.passed for each in measures),
        judged=bool(limits),
        changes=reason,
        measures=measures,
        actual=_actual(bundle, target),
        expected=_expected(other),
        inputs=InputsUsed(str(path), sha256(path), found.recordings, found.recordings, found.recordings),
        environment=reports.environment(),
        written=now(),
        word_errors=found,
    )
    return write_report(bundle, whole, _name(target, "wer", against), report)


def _actual(bundle: Bundle, target: str, cache_bits: int | None = None) -> results.ModelRecord:
    cached = "" if cache_bits is None else f" with caches of {cache_bits} bits"
    return recorded_side(ComparedModel(bundle, target, f"{bundle.path} on {target}{cached}"))


def _expected(other: Bundle | None) -> results.ModelRecord | None:
    return None if other is None else recorded_side(ComparedModel(other, BASELINE, f"{other.path} on {BASELINE}"))


def _name(target: str, measured: str, against: str | Path | None) -> str:
    """The name of the reports."""
    return f"{target}-{measured}" + ("" if against is None else f"-against-{slug(against)}")


def _other(bundle: Bundle, text: str | Path | None, against: str | Path | None) -> Bundle | None:
    """The model to compare with. Raises `UsageError` if it is not suitable."""
    if against in (PYTORCH, REFERENCE) or (against is None and text is None):
        what = f"--against {against}" if against is not None else f"bundle {bundle.path}"
        raise UsageError(
            f"{what}: expected a bundle, as for every generative model. Give the one that this was made from with "
            '--against BUNDLE, or only --perplexity FILE (for an encoder-decoder: lines of {"prompt": ..., '
            '"reference": ...}). The graphs were compared with the source model when they were exported.'
        )
    return None if against is None else Bundle.open(against)


def _inputs(found: Perplexity, text: str | Path | None) -> InputsUsed:
    source, digest = ("the output of the other model", "") if text is None else (str(text), sha256(Path(text)))
    return InputsUsed(source, digest, found.tokens, found.text_tokens, found.windows)
