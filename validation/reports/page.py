"""A report as one self-contained HTML file: its template and parts. Everything in it is escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from intaglio.display.markup import Markup, fill, join
from intaglio.errors import UsageError, storage_errors


def make_directory(report: Path) -> None:
    """Create the directory of the option `--report`. Raises `UsageError` if it is a file, `StorageError`."""
    with storage_errors(report):
        try:
            report.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UsageError(f"--report {report}: is not a directory. Choose another path.") from error


def page(verdict: str, title: str, heading: str, comparison: str, summary: str, sections: Iterable[Markup]) -> str:
    """The page; `verdict`: PASSED, FAILED or MEASURED. Empty sections are left out."""
    template = resources.files("intaglio.validation.reports").joinpath("report.html").read_text(encoding="utf-8")
    return fill(
        template,
        verdict=verdict,
        state=verdict.lower(),
        title=title,
        heading=heading,
        comparison=comparison,
        summary=summary,
        sections=join(section for section in sections if section),
    )


def now() -> str:
    """This moment, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def section(title: str, body: Markup) -> Markup:
    """A part of the page under a heading."""
    return fill("<section>\n<h2>$title</h2>\n$body\n</section>", title=title, body=body)


def pairs(values: dict[str, str]) -> Markup:
    """A table of names and values."""
    rows = [fill('<tr><th>$name</th><td class="code">$value</td></tr>', name=n, value=v) for n, v in values.items()]
    return fill('<div class="card scroll pairs"><table><tbody>$rows</tbody></table></div>', rows=join(rows))


def table(head: Sequence[str], rows: Sequence[Sequence[Markup]], numbers: Collection[str]) -> Markup:
    """A table of `cell`s; the titles in `numbers` are aligned as numbers are."""
    titles = join(
        fill('<th class="$kind">$title</th>', kind="number" if title in numbers else "", title=title) for title in head
    )
    body = join(fill("<tr>$cells</tr>", cells=join(cells)) for cells in rows)
    return fill(
        '<div class="card scroll"><table><thead><tr>$head</tr></thead><tbody>$body</tbody></table></div>',
        head=titles,
        body=body,
    )


def cell(text: str, kind: str) -> Markup:
    """A cell of a table; `kind`: "number", "code", "passed", "failed" or ""."""
    return fill('<td class="$kind">$text</td>', kind=kind, text=text)


def number(value: float) -> Markup:
    """A cell with three digits of a number."""
    return cell(f"{value:.3g}", "number")
