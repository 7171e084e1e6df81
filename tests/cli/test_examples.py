"""The examples at the end of `compress --help` and `sensitivity --help` run as printed."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from speech_bundles import RECORDINGS, export_recogniser

from intaglio.bundle.bundle import Bundle
from intaglio.cli import compress, sensitivity
from intaglio.graph_passes.recipes.loading import load_recipe
from intaglio.graph_passes.user.surgeon import Surgeon
from intaglio.sensitivity_file import Sensitivities

Run = Callable[..., tuple[int, str, str]]


def commands(epilog: str) -> list[list[str]]:
    """The arguments of each command."""
    found = [shlex.split(line)[1:] for line in epilog.splitlines() if line.strip().startswith("intaglio ")]
    assert found
    return found


def recipes(epilog: str) -> list[str]:
    """The YAML files."""
    return re.findall(r"^  passes:\n(?:    .*\n)+", epilog, flags=re.MULTILINE)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, intaglio: Run, tmp_path: Path) -> Callable[[list[str]], None]:
    """A function that runs a command in a folder with a text."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The quick brown fox jumps over the lazy dog; sphinx of black quartz. " * 20)

    def run(arguments: list[str]) -> None:
        code, _, error = intaglio(*arguments)
        assert code == 0, f"{shlex.join(arguments)}: {error}"

    return run


@pytest.mark.proof
def test_examples_of_sensitivity_and_of_decoder_recipes_run(
    typed: Callable[[list[str]], None], make_decoder: Callable[..., tuple[Path, Path]]
) -> None:
    shutil.copytree(make_decoder("gpt2")[0], "checkpoint")
    for arguments in commands(sensitivity.EPILOG):
        typed(arguments)
    Sensitivities.open("gpt2.sensitivity")
    assert Bundle.open("gpt2-lut").manifest.custom_operators == ["LutMatMul"]
    shutil.rmtree("gpt2-lut")  # the examples of compress create it too
    chosen = [arguments for arguments in commands(compress.EPILOG) if "gpt2" in arguments]
    for arguments in chosen:
        typed(arguments)
    assert {"lut", "lut-sparse", "gptq"} == {arguments[arguments.index("--recipe") + 1] for arguments in chosen}
    layer = Bundle.open("gpt2-3-bits").manifest.passes[-1]
    assert (layer.options["bits"], layer.options["group_size"]) == (3, 64)


@pytest.mark.proof
def test_examples_of_encoder_recipes_run(typed: Callable[[list[str]], None], tiny_bundle: Path) -> None:
    shutil.copytree(tiny_bundle, "bundle")
    shutil.copytree(tiny_bundle, "minilm")
    shutil.copytree(RECORDINGS, "recordings")
    export_recogniser(Path("recogniser"))
    shutil.copy("text.txt", "texts.txt")
    written = recipes(compress.EPILOG)
    assert len(written) == 3
    Path("mine.yaml").write_text(written[0])
    for arguments in commands(compress.EPILOG):
        if "gpt2" not in arguments:
            typed(arguments)
    Path("observing.yaml").write_text(written[1])
    typed(["compress", "bundle", "-o", "observed", "--recipe", "observing.yaml", "--calibration", "texts.txt"])
    Path("own.yaml").write_text(written[2])
    assert load_recipe("own.yaml")[1] == [Surgeon("my_changes:rewrite")]


def test_incompatible_option_is_refused_before_any_work(intaglio: Run, tmp_path: Path) -> None:
    arguments = ["compress", "/nowhere", "-o", tmp_path / "out", "--recipe", "lut", "--calibration", "/nowhere.txt"]
    assert intaglio(*arguments, "--group-size", "64") == (
        2, "", "intaglio: --group-size 64: no pass of recipe lut has this option. Recipes that do: rtn, gptq, awq.\n",
    )  # fmt: skip
