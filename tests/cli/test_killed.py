"""Killed commands leave the old or the new output, and the next command removes leftovers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from covering import few

from intaglio.bundle.bundle import Bundle
from intaglio.processes.temporary import SUFFIX

KILLS = int(os.environ.get("INTAGLIO_TEST_KILLS", "1"))  # of each command


def start(arguments: list[str], temporary: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "intaglio", *arguments]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def litter(place: Path) -> list[Path]:
    """Temporary files and folders below `place`."""
    return [path for path in place.rglob("*") if path.name.endswith(SUFFIX) or path.name.startswith("intaglio-")]


def killed(process: subprocess.Popen[str], place: Path, delay: float) -> bool:
    """Kill the process a moment after its first write; False if it had finished by then."""
    while process.poll() is None and not litter(place):
        time.sleep(0.002)
    time.sleep(delay)
    ended = process.poll() is not None
    process.kill()
    process.communicate()
    return not ended


@pytest.mark.parametrize("kills", few([KILLS, 3 * KILLS], [KILLS]))
# An export writes its output as compress does; test_interrupt_leaves_no_files stops one.
@pytest.mark.parametrize("verb", few(["export", "compress", "build"], ["compress", "build"]))
def test_killed_command_leaves_complete_output_and_the_next_cleans_up(
    verb: str, kills: int, tiny_decoder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    temporary, output = place / "temporary", place / "out"
    temporary.mkdir(parents=True)
    text = tmp_path / "text.txt"
    text.write_text("A sentence to look at. Another one, that is longer than the first, by far.\n" * 20)
    shutil.copytree(tiny_decoder, output)
    checkpoint = tiny_decoder.parent / "checkpoint"
    source = shutil.copytree(tiny_decoder, tmp_path / "source")
    recipe = ["--recipe", "gptq", "--calibration", str(text)]
    arguments = {
        "export": ["export", str(checkpoint), "-o", str(output), "--force"],
        "compress": ["compress", str(source), "-o", str(output), *recipe, "--force"],
        "build": ["build", str(output), "--target", "ort-cpu", "--force"],
    }[verb]
    moments = random.Random(verb)
    while kills:
        kills -= killed(start(arguments, temporary), place, moments.expovariate(4))
        Bundle.open(output)
    last = start(arguments, temporary)
    printed = last.communicate()
    assert last.returncode == 0, printed
    Bundle.open(output)
    assert litter(place) == []
    assert {path.name for path in place.iterdir()} == {"out", "temporary"}
