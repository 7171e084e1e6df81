"""The picture of a terminal in which `make quickstart` runs, as SVG.

    FORCE_COLOR=1 bash examples/quickstart.sh DIRECTORY | python tests/support/source/terminal_recording.py > FILE

Of the steps that are not `SHOWN` in full, the command and the last line are kept.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import PurePath

from rich.console import Console
from rich.text import Text

COLUMNS = 110
SHOWN = ("export", "validate", "run")
COMMAND = "$ intaglio "


def recording(printed: str) -> str:
    """SVG of what was printed: escape codes of colours, commands after "$ "."""
    steps = re.split(rf"(?m)^(?={re.escape(COMMAND)})", printed.partition("\nDone:")[0])[1:]
    text = "\n\n".join(_step(step.rstrip().splitlines()) for step in steps)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(text))
    svg = console.export_svg(title="make quickstart")
    # The reader's own fonts: a page that loads others would ask a host for them.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace")


def _step(lines: list[str]) -> str:
    command, *output = lines
    shown = output if command.removeprefix(COMMAND).startswith(SHOWN) else output[-1:]
    words = (re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", command))  # as `printf %q` wrote them
    return "\n".join([" ".join(map(_shortened, words)), *shown])


def _shortened(word: str) -> str:
    """A word of a command as README.md has it: by the names that session.sh sets, in quotes where it needs them."""
    if word.startswith("/"):
        return {"model": '"$MINILM"', "paragraphs.txt": '"$TEXT"'}[PurePath(word).name]
    return f'"{word}"' if " " in word else word


if __name__ == "__main__":
    sys.stdout.write(recording(sys.stdin.read()))
