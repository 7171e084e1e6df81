"""Score a generative model: its perplexity on a text, and the difference of its distributions from another model's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from intaglio.bounds import check_given, quality_limits
from intaglio.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.files import sha256
from intaglio.runtime.inputs import InputsUsed
from intaglio.validate import report as reports
from intaglio.validate import results
from intaglio.validate.changes import changes_between
from intaglio.validate.measures import judge
from intaglio.validate.perplexity import SCORED, Perplexity, perplexity
from intaglio.validate.report_files import check_report, recorded_side, slug, write_report
from intaglio.validate.results import Validated
from intaglio.validate.sides import BASELINE, PYTORCH, REFERENCE, Side


def score(
    bundle: Bundle,
    text: str | Path | None,
    against: str | Path | None,
    target: str,
    context: int | None,
    stride: int | None,
    report: str | Path | None,
    given: Mapping[str, float],
) -> Validated:
    """Score `bundle` on the file `text`, compare it with the bundle `against` if given, and write the report.

    The arguments and exceptions are those of `validate`; `given` are the user's bounds.
    """
    other, changes = _other(bundle, text, against), None
    if other is not None:
        changes = changes_between(bundle.manifest, other.manifest)
        check_given(given, SCORED)
    elif given:
        raise UsageError("a bound needs a model to compare with. Add --against BUNDLE, or leave the bounds out.")
    check_report(bundle, report)
    found = perplexity(bundle, text, other, target, context, stride)
    measures = judge(found.compared, quality_limits(changes.effect, SCORED, given)) if changes else []
    whole = results.Report(
        passed=math.isfinite(found.perplexity) and all(each.passed for each in measures),
        judged=changes is not None,
        changes=changes.reason if changes else "",
        measures=measures,
        actual=recorded_side(Side(bundle, target, f"{bundle.path} on {target}")),
        expected=recorded_side(Side(other, BASELINE, f"{other.path} on {BASELINE}")) if other else None,
        outputs={},
        not_compared=[],
        layers=[],
        bisected=False,
        first_layer_beyond=None,
        inputs=_inputs(found, text),
        environment=reports.environment(),
        written=reports.now(),
        perplexity=found,
    )
    name = f"{target}-perplexity" + ("" if against is None else f"-against-{slug(against)}")
    return write_report(bundle, whole, name, report)


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
