"""`make man`: a page for every command, which man can format."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from intaglio.cli import cli
from intaglio.cli.running.command import commands

pytest.importorskip("click_man", reason="pip install 'intaglio[dev]'")

PROGRAM = Path(__file__).parent / "support" / "source" / "man_pages.py"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, PROGRAM, folder], check=True)
    return folder


def test_every_command_has_a_page_with_its_options(pages: Path) -> None:
    known = dict(commands(cli, click.Context(cli)))
    names = {"intaglio", "intaglio-train", "intaglio-deploy", *(f"intaglio-{name.replace(' ', '-')}" for name in known)}
    assert {page.stem for page in pages.iterdir()} == names
    for name, command in known.items():
        text = (pages / f"intaglio-{name.replace(' ', '-')}.1").read_text()
        assert text.startswith('.TH "INTAGLIO')
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len).replace("-", "\\-") in text
    assert ".SH COMMANDS" in (pages / "intaglio.1").read_text()


def test_groff_formats_every_page(pages: Path) -> None:
    groff = shutil.which("groff") or pytest.skip("no groff")
    command = [groff, "-man", "-Tutf8", "-P-cbou", "-ww", *sorted(pages.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "" and done.stdout.count("\nNAME\n") == len(list(pages.iterdir()))
