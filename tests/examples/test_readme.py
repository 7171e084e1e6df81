"""README.md: its session shows the output of the commands, and its links resolve."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal_recording import COLUMNS, SECONDS, recording

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIME = re.compile(r"\d+\.\d s\b")
SIZE = re.compile(r"(\d+\.\d) MB")


def session() -> list[tuple[str, str]]:
    """The commands of the session, each with its output line."""
    (block,) = re.findall(r"^```console\n(\$ intaglio .*?)^```", (ROOT / "README.md").read_text(), re.S | re.M)
    lines = block.splitlines()
    assert [line[:2] == "$ " for line in lines] == [True, False] * (len(lines) // 2)
    return [(command[2:], printed) for command, printed in zip(lines[::2], lines[1::2], strict=True)]


@pytest.mark.proof  # test_documentation checks the commands and options of every page without running them
def test_session_shows_the_output_of_its_commands(minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    commands, expected = zip(*session(), strict=True)
    script = "\n".join(["set -e", f'source examples/session.sh "{tmp_path}"', *commands])
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    printed = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    for line, wanted in zip(printed, expected, strict=True):
        assert SIZE.sub("", TIME.sub("", line)) == SIZE.sub("", TIME.sub("", wanted))
        # The size of TensorRT engines differs by some kB between builds.
        sizes, wanted_sizes = ([float(number) for number in SIZE.findall(text)] for text in (line, wanted))
        assert sizes == pytest.approx(wanted_sizes, rel=0.005)


def test_session_has_ten_lines() -> None:
    assert len(session()) == 5


def test_quickstart_has_the_commands_of_the_session() -> None:
    steps = re.findall(r"^step (.*)$", (ROOT / "examples" / "quickstart.sh").read_text(encoding="utf-8"), re.M)
    printed = [command.removeprefix("intaglio ").removesuffix(" | tail -1") for command, _ in session()]
    assert [step.removesuffix(" --force") for step in steps[: len(printed)]] == printed
    assert "--similarity" in steps[len(printed)]


def test_picture_of_the_terminal_shows_the_steps_of_the_quickstart() -> None:
    steps = re.findall(r"^step (.*)$", (ROOT / "examples" / "quickstart.sh").read_text(encoding="utf-8"), re.M)
    picture = (ROOT / "docs" / "pictures" / "quickstart.svg").read_text(encoding="utf-8")
    lines = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</text>", "\n", picture))).replace("\xa0", " ")
    shown = " ".join(lines.split())
    assert [step for step in steps if f"$ intaglio {step}" not in shown] == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|/(home|root|work|tmp)/", picture)


def test_picture_of_the_terminal_is_a_recording_that_ends_with_all_lines() -> None:
    picture = (ROOT / "docs" / "pictures" / "quickstart.svg").read_text(encoding="utf-8")
    rows = re.findall(r'<text style="animation-delay:([\d.]+)s" class="[^"]*" x="[\d.]+" y="([\d.]+)"', picture)
    delays = [float(delay) for delay, _ in sorted(rows, key=lambda row: float(row[1]))]
    assert delays == sorted(delays) and (delays[0], delays[-1]) == (0, SECONDS) and len(set(delays)) > 8
    assert len(rows) == picture.count("</text>") - 1  # all but the title
    # Rows are hidden by the animation alone, which is left out where the reader asks for less motion.
    (animation,) = re.findall(r"@media \(prefers-reduced-motion: no-preference\) \{(.*?)\}\s*\}", picture, re.DOTALL)
    assert "animation: appear 1ms backwards" in animation and picture.count("animation: ") == 1
    assert picture.count("opacity") == 1 and "<script" not in picture and "visibility" not in picture


def test_recording_keeps_the_rhythm_of_the_lines() -> None:
    printed = [(0, ""), (5, "$ intaglio export /x/model"), (6, "a table"), (7, ""), (9, "z" * (COLUMNS + 1)), (9.5, "")]
    printed += [(10, "$ intaglio compress a\\ b"), (11, "left out"), (14, "smaller"), (15, ""), (25, "Done: all")]
    svg = recording((time, f"{line}\n") for time, line in printed)
    text = html.unescape(svg).replace("\xa0", " ")
    rows = re.findall(r"animation-delay:([\d.]+)s[^>]*>([^<]*)<", text)
    expected = [('$ intaglio export "$MINILM"', 5), ("a table", 6), ("z" * COLUMNS, 9), ("z", 9)]
    expected += [('$ intaglio compress "a b"', 10), ("smaller", 14)]
    assert rows == [(f"{SECONDS * (time - 5) / 9:.2f}", line) for line, time in expected]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_result_cells_have_one_number() -> None:
    rows = re.findall(r"^\| .* \| .* \| (.*) \|$", (ROOT / "README.md").read_text().partition("## Results")[2], re.M)
    table = rows[: next(index for index, row in enumerate(rows) if "optimum" in row or "llama.cpp" in row)]
    numbers = [row for row in table if row not in ("Intaglio : peer", "---")]
    assert len(numbers) == 10
    assert all(re.fullmatch(r"[0-9.]+", number) for number in numbers)
