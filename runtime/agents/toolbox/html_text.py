"""HTML to text: a page's title, headings, paragraphs, list items and table cells."""

from __future__ import annotations

import re
import time
from html.parser import HTMLParser
from typing import NamedTuple
from urllib.parse import urljoin

from intaglio.runtime.agents.tools.tool import ToolError

PARSE_SECONDS = 5.0  # the parser takes quadratic time for broken pages
HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "select", "textarea"})
HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
BLOCKS = re.compile(
    "h[1-6r]|address|article|aside|blockquote|body|br|dd|details|div|dl|dt|fieldset|figcaption|figure|footer|form|head|"
    "header|html|li|main|nav|ol|p|pre|section|summary|table|tbody|tfoot|thead|title|tr|ul"
)
SPACES = re.compile(r"[^\S\n]+")
LINES = re.compile(r" *\n *")
INDENT = "\ue000"  # a space of preformatted text, of the private use area, until all others are collapsed
GAPS = re.compile(r"\n{3,}")


class PageText(NamedTuple):
    """The text of a page."""

    title: str
    text: str


def html_text(html: str, address: str | None = None) -> PageText:
    """Return the title and the visible text of `html`; with `address`, links are written as `text (URL)`.

    Raises `ToolError` for a page that takes more than `PARSE_SECONDS`.
    """
    parser = _Parser(address)
    parser.feed(html)
    parser.close()
    text = GAPS.sub("\n\n", LINES.sub("\n", SPACES.sub(" ", "".join(parser.pieces))))
    return PageText(" ".join("".join(parser.title).split()), text.strip().replace(INDENT, " "))


class _Parser(HTMLParser):
    def __init__(self, address: str | None):
        super().__init__(convert_charrefs=True)
        self.title: list[str] = []
        self.pieces: list[str] = []
        self._address = address
        self._links: list[str | None] = []
        self._hidden = 0  # open elements whose text is not shown
        self._preformatted = 0
        self._in_title = False
        self._deadline = time.monotonic() + PARSE_SECONDS

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._check_time()
        if tag in HIDDEN:
            self._hidden += 1
        elif tag == "title":
            self._in_title = True
        elif tag == "pre":
            self._preformatted += 1
        elif tag == "a" and self._address is not None:
            self._links.append(dict(attrs).get("href"))
        self._open(tag)

    def _open(self, tag: str) -> None:
        if BLOCKS.fullmatch(tag):
            self.pieces.append("\n\n" if tag in HEADINGS or tag == "p" else "\n")
        if tag in ("td", "th"):
            self.pieces.append(" | ")
        self.pieces.append("- " if tag == "li" else HEADINGS.get(tag, ""))

    def handle_endtag(self, tag: str) -> None:
        self._check_time()
        if tag in HIDDEN:
            self._hidden = max(0, self._hidden - 1)
        elif tag == "title":
            self._in_title = False
        elif tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif tag == "a" and self._links:
            link = self._links.pop()
            if link and self._address is not None and not link.startswith(("#", "javascript:")):
                self.pieces.append(f" ({_joined(self._address, link)})")
        if BLOCKS.fullmatch(tag):
            self.pieces.append("\n\n" if tag in HEADINGS or tag == "p" else "\n")

    def handle_data(self, data: str) -> None:
        self._check_time()
        if self._in_title:
            self.title.append(data)
        elif not self._hidden:
            self.pieces.append(data.replace(" ", INDENT) if self._preformatted else re.sub(r"\s+", " ", data))

    def handle_comment(self, data: str) -> None:
        self._check_time()

    def unknown_decl(self, data: str) -> None:
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise ToolError(f"the page's HTML is broken: reading it takes more than {PARSE_SECONDS:g} seconds.")


def _joined(address: str, link: str) -> str:
    try:
        return urljoin(address, link)
    except ValueError:  # such as a broken IPv6 address
        return link
