"""A recording of a terminal in which `make quickstart` runs, as one SVG: each line appears when it was printed.

    FORCE_COLOR=1 PYTHONUNBUFFERED=1 bash examples/quickstart.sh DIRECTORY |
        python tests/support/source/terminal_recording.py > FILE

Of the steps that are not `SHOWN` in full, the command and the last line are kept. The time is compressed evenly to
`SECONDS`; then the last picture stays. It is an animation in CSS, which also runs where a page shows the SVG as an
image. Without animations, or where the reader asks for less motion, all lines are there from the start.
"""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Iterable
from pathlib import PurePath

from rich.console import Console
from rich.text import Text

COLUMNS = 110
SECONDS = 20
SHOWN = ("export", "validate", "run")
COMMAND = "$ intaglio "
END = "Done:"

Line = tuple[float, str]  # the time in seconds, and what was printed then


def recording(printed: Iterable[Line]) -> str:
    """SVG of what was printed: escape codes of colours, commands after "$ "."""
    lines = _kept(printed)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    begin, end = lines[0][0], lines[-1][0]
    delays: list[float] = []  # of each row of the terminal
    for at, line in lines:
        text = Text.from_ansi(line)
        delays += [SECONDS * (at - begin) / (end - begin)] * len(console.render_lines(text))
        console.print(text)
    svg = console.export_svg(title="make quickstart")
    # The reader's own fonts: a page that loads others would ask a host for them.
    svg = re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "monospace")
    svg = re.sub(r"<text [^>]*>\n</text>", "", svg)  # the end of each row
    svg = re.sub(
        r"<text (?=[^>]*-line-(\d+)\))", lambda row: f'<text style="animation-delay:{delays[int(row[1])]:.2f}s" ', svg
    )
    return svg.replace("</style>", f"{_animation(svg)}</style>", 1)


def _animation(svg: str) -> str:
    """Rows are hidden before their delay is over. What has no animation shows them."""
    (rows,) = re.findall(r"\.terminal-\d+-matrix", svg)
    return f"""
    @keyframes appear {{ from {{ opacity: 0 }} }}
    @media (prefers-reduced-motion: no-preference) {{
        {rows} text {{ animation: appear 1ms backwards }}
    }}
    """


def _kept(printed: Iterable[Line]) -> list[Line]:
    """The lines to show."""
    steps: list[list[Line]] = []
    for at, line in printed:
        if line.startswith(END):
            break
        if line.startswith(COMMAND):
            steps.append([])
        if steps:
            steps[-1].append((at, line.rstrip()))
    return [line for step in steps for line in _step(step)][:-1]


def _step(lines: list[Line]) -> list[Line]:
    """The lines of one step to show, and an empty one."""
    while not lines[-1][1]:
        lines.pop()
    (at, command), *output = lines
    shown = output if command.removeprefix(COMMAND).startswith(SHOWN) else output[-1:]
    words = (re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", command))  # as `printf %q` wrote them
    return [(at, " ".join(map(_shortened, words))), *shown, (lines[-1][0], "")]


def _shortened(word: str) -> str:
    """A word of a command as README.md has it: by the names that session.sh sets, in quotes where it needs them."""
    if word.startswith("/"):
        return {"model": '"$MINILM"', "paragraphs.txt": '"$TEXT"'}[PurePath(word).name]
    return f'"{word}"' if " " in word else word


if __name__ == "__main__":
    sys.stdout.write(recording((time.monotonic(), line) for line in sys.stdin))
