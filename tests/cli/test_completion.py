"""Shell completion: offered words, speed, and valid scripts."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intaglio.cli import VERBS, completion
from intaglio.cli.options.choices import DTYPE
from intaglio.exporters.export_model import DTYPES
from intaglio.validation.comparison.compared_models import PYTORCH, REFERENCE


def asked(line: str, folder: Path, shell: str = "bash") -> list[str]:
    """The words offered in `folder` for the last word of `line`."""
    words = line.split(" ")
    position = words[-1] if shell == "fish" else str(len(words) - 1)
    environment = {"_INTAGLIO_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": position}
    found = subprocess.run(
        [sys.executable, "-P", "-m", "intaglio"],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stderr == ""
    return found.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two bundles (completion reads only the name of the manifest), a folder and a file."""
    for name in ("minilm", "minilm-fp16"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bundle.json").touch()
    (tmp_path / "models" / "deep").mkdir(parents=True)
    (tmp_path / "models" / "deep" / "bundle.json").touch()
    (tmp_path / "minutes.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("intaglio comp", ["plain,compress", "plain,completion"]),
        ("intaglio compress mini", ["plain,minilm", "plain,minilm-fp16"]),
        ("intaglio compress models/", ["plain,models/deep"]),
        ("intaglio compress mod", ["dir,mod"]),
        ("intaglio compress minilm --rec", ["plain,--recipe"]),
        ("intaglio compress minilm --recipe lut", ["plain,lut", "plain,lut-sparse"]),
        ("intaglio compress minilm --recipe ./mine", ["file,./mine"]),
        ("intaglio build minilm --target tensor", ["plain,tensorrt", "plain,tensorrt-rtx"]),
        ("intaglio generate lm --strategy=s", ["plain,sample", "plain,speculative"]),
        ("intaglio train al", ["plain,align"]),
        ("intaglio train align ./small --teacher minilm-", ["plain,minilm-fp16"]),
        ("intaglio validate minilm --against r", ["plain,reference", "dir,r"]),
        ("intaglio completion z", ["plain,zsh"]),
        ("intaglio --ver", ["plain,--version"]),
    ],
)
def test_completion_offers_valid_next_words(line: str, offered: list[str], folder: Path) -> None:
    assert asked(line, folder) == offered


def test_completion_offers_every_verb_with_its_help(folder: Path) -> None:
    assert asked("intaglio ", folder) == [f"plain,{verb}" for verb in VERBS]
    assert asked("intaglio ins", folder, "zsh") == ["plain", "inspect", VERBS["inspect"]]


def test_completion_offers_directories_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [item.value for item in completion.bundles("~nobody-of-this-name/x")] == ["~nobody-of-this-name/x"]


def test_completion_offers_existing_names() -> None:
    assert DTYPE.choices == DTYPES
    assert completion.AGAINST == (PYTORCH, REFERENCE)


def test_completion_imports_no_heavy_library(folder: Path) -> None:
    """The line with the most imports: an option of a verb. It took 0.17 to 0.25 s on two busy cores."""
    base, ours = [], []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-P", "-c", "import click, pathlib"], check=True)
        base.append(time.perf_counter() - start)
        start = time.perf_counter()
        asked("intaglio compress minilm --recipe lut", folder)
        ours.append(time.perf_counter() - start)
    assert statistics.median(ours) < 4 * statistics.median(base)


def test_command_line_imports_no_rarely_needed_library() -> None:
    code = "import sys, intaglio.cli; print([name for name in ('asyncio', 'msgspec', 'numpy') if name in sys.modules])"
    started = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert started.stdout == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_parses_its_completion_script(shell: str, tmp_path: Path) -> None:
    program = [sys.executable, "-P", "-m", "intaglio", "completion", shell]
    script = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "_INTAGLIO_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


COMPLETE_IN_BASH = """
set -e
mkdir bin
printf '#!/bin/sh\\nexec PROGRAM -P -m intaglio "$@"\\n' > bin/intaglio
chmod +x bin/intaglio
PATH=$PWD/bin:$PATH
source <(intaglio completion bash)
complete -p intaglio
COMP_WORDS=(intaglio compress minilm --recipe float)
COMP_CWORD=4
_intaglio_completion intaglio
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_bash_completes_with_the_script(folder: Path) -> None:
    program = COMPLETE_IN_BASH.replace("PROGRAM", sys.executable)
    command = ["bash", "--norc", "-c", program]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert found.stderr == ""
    first, *completed = found.stdout.splitlines()
    assert first == "complete -o nosort -F _intaglio_completion intaglio"
    assert completed == ["float16", "float16-weights"]


def test_package_runs_as_a_module() -> None:
    command = [sys.executable, "-P", "-m", "intaglio", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("intaglio, version ")
