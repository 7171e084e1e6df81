"""Write the reports of a validation to the bundle, or to a directory chosen by the user."""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec.structs import replace

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.recorded_name import recorded_name
from intaglio.errors import StorageError
from intaglio.files.atomic import atomic_write
from intaglio.storage.cache import refuse_fetched
from intaglio.validation.comparison.compared_models import PYTORCH, ComparedModel
from intaglio.validation.reports import report as reports
from intaglio.validation.reports import results
from intaglio.validation.reports.page import make_directory
from intaglio.validation.reports.results import Validated
from intaglio.validation.scores.word_errors import Recognised


def recorded_side(side: ComparedModel) -> results.ModelRecord:
    """The report's entry for one side of a comparison."""
    files = side.bundle.manifest.files
    kept = {name: record.sha256 for name, record in files.items() if not name.startswith("reports/")}
    path, name = str(side.bundle.path), recorded_name(side.bundle.path)
    return results.ModelRecord(side.name.replace(path, name), name, kept)


def check_report(bundle: Bundle, report: str | Path | None) -> None:
    """Raise an error before any work is done if the report cannot be written."""
    if report is None:
        refuse_fetched(bundle.path, "its reports need another place. Add --report DIR.")
        if not os.access(bundle.path, os.W_OK):
            raise StorageError(f"bundle {bundle.path}: is not writable. Add --report DIR for the report.")
        return
    make_directory(Path(report))


def write_report(bundle: Bundle, whole: results.Report, name: str, report: str | Path | None) -> Validated:
    """Write both reports, as `name`.json and `name`.html; return their content."""
    written = _without_folders(whole)
    files = {f"{name}.json": reports.to_json(written), f"{name}.html": reports.to_html(written).encode()}
    if report is None:
        bundle.add_files({f"reports/{file}": content for file, content in files.items()})
        return _validated(whole, bundle.path / "reports" / f"{name}.html")
    for file, content in files.items():
        atomic_write(Path(report) / file, content)
    return _validated(whole, Path(report) / f"{name}.html")


def _without_folders(whole: results.Report) -> results.Report:
    """The report with the names of the user's files, without the folders of this machine."""
    named = replace(whole.inputs, source=recorded_name(whole.inputs.source))
    spoken = whole.word_errors
    if spoken is not None:
        other = None if spoken.expected is None else _named(spoken.expected)
        spoken = replace(spoken, actual=_named(spoken.actual), expected=other)
    return replace(whole, inputs=named, word_errors=spoken)


def _named(found: Recognised) -> Recognised:
    return replace(found, worst=[replace(each, recording=recorded_name(each.recording)) for each in found.worst])


def slug(against: str | Path | None) -> str:
    """`against` as a part of a file name."""
    name = PYTORCH if against is None else Path(against).absolute().name
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name) or "bundle"


def _validated(whole: results.Report, path: Path) -> Validated:
    """The result returned to the caller, for the report at `path`."""
    validated = Validated(
        passed=whole.passed,
        outputs=whole.outputs,
        report=str(path),
        judged=whole.judged,
        changes=whole.changes,
        measures=whole.measures,
        not_compared=whole.not_compared,
        first_layer_beyond=whole.first_layer_beyond,
    )
    if scored := whole.perplexity:
        for name in ("perplexity", "kl_divergence", "tokens", "against_perplexity", "same_top"):
            setattr(validated, name, getattr(scored, name))
    if spoken := whole.word_errors:
        for name in ("words", "recordings", "seconds"):
            setattr(validated, name, getattr(spoken, name))
        for name in Recognised.__struct_fields__:
            setattr(validated, name, getattr(spoken.actual, name))
        other = spoken.expected
        validated.against_wer, validated.against_cer = (other.wer, other.cer) if other else (None, None)
    return validated
