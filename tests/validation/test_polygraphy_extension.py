"""Our runners in `polygraphy run`, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from intaglio.validation.polygraphy_extension import bundle_of


def polygraphy_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("polygraphy")), "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_runners_agree_with_those_of_polygraphy(chain: Callable[..., onnx.ModelProto], tmp_path: Path) -> None:
    onnx.save(chain(2), tmp_path / "chain.onnx")
    shapes = ("--input-shapes", "x:[3,8]")
    found = polygraphy_run(tmp_path / "chain.onnx", "--onnxrt", "--intaglio", "--intaglio-reference", *shapes)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("Pass Rate: 100.00%") == 2
    assert "intaglio ort-cpu" in found.stdout
    assert "intaglio reference" in found.stdout


def test_bundle_is_compared_with_its_source(tiny_bundle: Path) -> None:
    feeds = ("--input-shapes", "input_ids:[2,5]", "attention_mask:[2,5]", "token_type_ids:[2,5]")
    ranges = ("--val-range", "input_ids:[5,40]", "attention_mask:[1,1]", "token_type_ids:[0,1]", "--atol", "1e-4")
    found = polygraphy_run(tiny_bundle, "--intaglio", "--intaglio-pytorch", *feeds, *ranges)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Pass Rate: 100.00%" in found.stdout


def test_wrong_target_lists_the_targets(tiny_bundle: Path) -> None:
    found = polygraphy_run(tiny_bundle / "model.onnx", "--intaglio", "--intaglio-target", "abacus")
    assert found.returncode != 0
    assert "target 'abacus': expected one of ort-cpu" in found.stdout + found.stderr


@pytest.mark.parametrize(("path", "is_bundle"), [("", True), ("model.onnx", True), ("tokenizer.json", False)])
def test_model_path_in_a_bundle_selects_the_bundle(path: str, is_bundle: bool, tiny_bundle: Path) -> None:
    assert bundle_of(tiny_bundle / path) == (tiny_bundle if is_bundle else None)


def test_model_outside_a_bundle_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    assert bundle_of(tmp_path / "model.onnx") is None
