"""Every page and notebook of docs/ has a place in the navigation of the site, which `make docs` builds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from documentation import ROOT

GENERATED = {"index.md", "commands.md", "python.md", "checkout/CHANGELOG.md"}  # by docs/site/pages.py


def test_navigation_has_each_page_once() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(pages_of(settings["nav"]))
    assert len(listed) == len(set(listed))
    files = (path for suffix in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{suffix}"))
    assert set(listed) == GENERATED | {path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in files}


def pages_of(entry: Any) -> Iterator[str]:
    """The paths in a part of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for each in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(each)
