"""Write a manual page of every command:   python tests/support/source/man_pages.py FOLDER"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from intaglio.cli import VERBS, cli
from intaglio.version import __version__


def main() -> None:
    """Write them to a folder, whose pages of an earlier version are removed; SOURCE_DATE_EPOCH is their date."""
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    context = click.Context(cli)
    # Commands are loaded when they are called; click-man asks for all that there are.
    cli.commands = {name: command for name in VERBS if (command := cli.get_command(context, name))}
    write_man_pages("intaglio", cli, version=__version__, target_dir=str(folder))


if __name__ == "__main__":
    main()
