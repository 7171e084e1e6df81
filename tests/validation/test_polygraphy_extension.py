"""Our runners in `polygraphy run`; one test starts its program, as a user does, the others call its main function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from polygraphy.tools import main

from intaglio.validation.polygraphy_extension import bundle_of

# Polygraphy reads the entry points of its plugins by an older interface of Python.
pytestmark = pytest.mark.filterwarnings("ignore:SelectableGroups dict interface is deprecated")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def polygraphy_run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `polygraphy run` on arguments in this process; return exit code and output."""

    def run(*arguments: str | Path) -> tuple[int, str]:
        code = main(["run", *map(str, arguments)])
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return run


def test_runners_agree_with_those_of_polygraphy(
    polygraphy_run: Run, chain: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    onnx.save(chain(2), tmp_path / "chain.onnx")
    shapes = ("--input-shapes", "x:[3,8]")
    code, shown = polygraphy_run(tmp_path / "chain.onnx", "--onnxrt", "--intaglio", "--intaglio-reference", *shapes)
    assert code == 0, shown
    assert shown.count("Pass Rate: 100.00%") == 2
    assert "intaglio ort-cpu" in shown
    assert "intaglio reference" in shown


def test_bundle_is_compared_with_its_source(polygraphy_run: Run, tiny_bundle: Path) -> None:
    feeds = ("--input-shapes", "input_ids:[2,5]", "attention_mask:[2,5]", "token_type_ids:[2,5]")
    ranges = ("--val-range", "input_ids:[5,40]", "attention_mask:[1,1]", "token_type_ids:[0,1]", "--atol", "1e-4")
    code, shown = polygraphy_run(tiny_bundle, "--intaglio", "--intaglio-pytorch", *feeds, *ranges)
    assert code == 0, shown
    assert "Pass Rate: 100.00%" in shown


def test_wrong_target_lists_the_targets(tiny_bundle: Path) -> None:
    command = [Path(sys.executable).with_name("polygraphy"), "run", tiny_bundle / "model.onnx", "--intaglio"]
    command += ["--intaglio-target", "abacus"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "target 'abacus': expected one of ort-cpu" in found.stdout + found.stderr


@pytest.mark.parametrize(("path", "is_bundle"), [("", True), ("model.onnx", True), ("tokenizer.json", False)])
def test_model_path_in_a_bundle_selects_the_bundle(path: str, is_bundle: bool, tiny_bundle: Path) -> None:
    assert bundle_of(tiny_bundle / path) == (tiny_bundle if is_bundle else None)


def test_model_outside_a_bundle_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    assert bundle_of(tmp_path / "model.onnx") is None
