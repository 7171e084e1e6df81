"""Messages that the page on troubleshooting explains are those that the program prints."""

from __future__ import annotations

import re

import pytest
from documentation import ROOT

PAGE = (ROOT / "docs" / "help" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.*?`(?: … `.*?`)?)[^|]* \|", PAGE, re.M)
STAGES = "cli deploy exporters graph_passes intaglio plugins runtime serve training validation".split()
SOURCE = "\n".join(
    re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))  # a message may go on in the next line
    for stage in STAGES
    for path in (ROOT / stage).rglob("*.py")
)


def test_page_has_messages() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS)
def test_message_is_printed_by_the_program(row: str) -> None:
    for part in re.findall(r"`(.*?)`", row):
        assert part in SOURCE, part
