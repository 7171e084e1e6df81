"""Messages that the page on troubleshooting explains are those that the program prints."""

from __future__ import annotations

import re

import pytest
from documentation import ROOT

PAGE = (ROOT / "docs" / "help" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?`(?: … `.*?`)?)[^|]* \|", PAGE, re.M)
SOURCE = "\n".join(
    re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))  # a message may go on in the next line
    for path in ROOT.rglob("*.py")
    if path.relative_to(ROOT).parts[0] not in ("build", "links", "tests", ".venv")
)


def test_page_has_messages() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS)
def test_message_is_printed_by_the_program(row: str) -> None:
    for part in re.findall(r"`(.*?)`", row):
        assert part in SOURCE, part
