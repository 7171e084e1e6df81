"""Every page and notebook of docs/ has a place in the navigation of the site, a few clicks from the start."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from documentation import ROOT

NAVIGATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
HOME = "index.md"  # README.md
GENERATED = {HOME, "commands.md", "python.md", "checkout/CHANGELOG.md"}  # by docs/site/pages.py
# What readers come for, with a page about it and a heading or a command of that page.
SOUGHT = {
    "export": ("reference.md", "## What can be exported"),
    "compress": ("compressed-weights.md", "intaglio compress large"),
    "serve": ("serving.md", "intaglio serve chat=smollm2-int8"),
    "cluster": ("deploy/cluster.md", "--executor ray"),
}
CLICKS = 3


def test_navigation_has_each_page_once() -> None:
    listed = [page for _, page in pages_of(NAVIGATION)]
    assert len(listed) == len(set(listed))
    files = (path for suffix in ("md", "ipynb") for path in (ROOT / "docs").rglob(f"*.{suffix}"))
    assert set(listed) == GENERATED | {path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in files}


def pages_of(entry: Any, title: str = "") -> Iterator[tuple[str, str]]:
    """The titles and paths in a part of the navigation."""
    if isinstance(entry, str):
        yield title, entry
    elif isinstance(entry, dict):
        for name, each in entry.items():
            yield from pages_of(each, name)
    else:
        for each in entry:
            yield from pages_of(each, title)


def links_of(page: str) -> Iterator[tuple[str, str]]:
    """What a reader of a page can click: headings of the navigation, pages under its own heading, links in its text."""
    for heading in NAVIGATION:
        (title,) = heading
        pages = list(pages_of(heading))
        yield f"heading {title}", pages[0][1]
        if page in dict(map(reversed, pages)):
            yield from pages
    source = ROOT / "README.md" if page == HOME else ROOT / "docs" / page
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    for words, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+\.md)", text):
        yield words, posixpath.normpath(posixpath.join(posixpath.dirname(page), target.removeprefix("docs/")))


def clicks() -> dict[str, list[str]]:
    """For each page the shortest way from the home page: what is clicked."""
    listed = {page for _, page in pages_of(NAVIGATION)}
    ways: dict[str, list[str]] = {HOME: []}
    for page in (reached := [HOME]):
        for label, target in links_of(page):
            if target in listed and target not in ways:
                ways[target] = [*ways[page], label]
                reached.append(target)
    return ways


@pytest.mark.parametrize("sought", SOUGHT)
def test_main_jobs_are_few_clicks_from_the_start(sought: str) -> None:
    page, content = SOUGHT[sought]
    assert content in (ROOT / "docs" / page).read_text(encoding="utf-8")
    way = clicks()[page]
    print(f"{sought}: {page}: home, {', '.join(way)}")  # noqa: T201  shown if the test fails, and with -s
    assert len(way) <= CLICKS, f"{sought}: {page} is {len(way)} clicks from the home page: {', '.join(way)}"
