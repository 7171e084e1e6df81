"""Bundles of `gpu-check`, with the CPU in the place of a GPU: they are built, compared and timed for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_whispers import save_whisper

from intaglio.exporters import export
from intaglio.validation.gpu_check import gpu_check, workers

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def on_cpu(gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose only target is the CPU, and no kernels to check before."""
    pytest.importorskip("onnxruntime")
    gpu()
    monkeypatch.setattr(gpu_check, "bundle_targets", lambda sm: ["ort-cpu"])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("on_cpu")
def test_each_bundle_is_built_compared_and_timed(
    intaglio: Run, tiny_bundle: Path, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    decoder = make_decoder("llama", max_position_embeddings=1024)[1]
    before = contents(decoder)
    code, printed, errors = intaglio(
        "gpu-check", "--bundle", tiny_bundle, "--bundle", decoder, "--report", tmp_path / "reports", "--json"
    )
    assert (code, errors) == (0, ""), printed
    found = json.loads(printed)
    assert found["passed"] and found["kernels"] == []
    assert [each["bundle"] for each in found["bundles"]] == [str(tiny_bundle), str(decoder)]
    for each, unit in zip(found["bundles"], ("texts", "tokens"), strict=True):
        assert (each["target"], each["passed"], each["failure"]) == ("ort-cpu", True, None)
        assert each["compared"]["passed"] and each["compared"]["outputs"] > 0
        assert each["throughput"]["unit"] == unit
        assert each["throughput"]["on_target"] > 0 and each["throughput"]["on_cpu"] > 0
    assert contents(decoder) == before
    page = (tmp_path / "reports" / "gpu-check.html").read_text()
    assert "2 of 2 passed" in page and str(decoder) in page


@pytest.mark.usefixtures("on_cpu")
def test_bundle_that_fails_costs_its_row(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(tiny_bundle, tmp_path / "damaged"))
    (damaged / "model.onnx").write_bytes(b"no graph")
    code, printed, _ = intaglio("gpu-check", "--bundle", damaged, "--bundle", tiny_bundle)
    assert code == 1
    lines = printed.splitlines()
    assert any(line.startswith(f"{damaged} on ort-cpu: error: ") and "model.onnx" in line for line in lines)
    assert lines[-1] == "FAILED"


@pytest.mark.usefixtures("on_cpu")
def test_bundle_without_a_manifest_that_can_be_read_costs_its_row(
    intaglio: Run, tiny_bundle: Path, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(tiny_bundle, tmp_path / "damaged"))
    (damaged / "bundle.json").write_text("{")
    code, printed, _ = intaglio("gpu-check", "--bundle", damaged)
    assert code == 1
    assert any(line.startswith(f"{damaged} on ort-cpu: error: ") for line in printed.splitlines())


@pytest.mark.usefixtures("on_cpu")
def test_bundle_that_a_target_does_not_support_is_left_out_by_name(
    intaglio: Run, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(str(save_whisper(tmp_path / "checkpoint")), whisper := tmp_path / "whisper")
    code, printed, _ = intaglio("gpu-check", "--bundle", whisper, "--bundle", tiny_bundle, "--report", tmp_path / "r")
    assert code == 0, printed
    assert f"{whisper} on ort-cpu: not supported: it is compared by recordings alone" in printed
    page = (tmp_path / "r" / "gpu-check.html").read_text()
    assert "not supported" in page
    monkeypatch.setattr(gpu_check, "not_supported", lambda path, target: "")
    assert intaglio("gpu-check", "--bundle", whisper)[0] == 1


@pytest.mark.usefixtures("on_cpu")
def test_bundle_that_takes_too_long_is_a_timeout(
    intaglio: Run, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "SECONDS", 0.05)
    code, printed, _ = intaglio("gpu-check", "--bundle", tiny_bundle, "--json")
    (found,) = json.loads(printed)["bundles"]
    assert code == 1 and found["failure"]["kind"] == "timeout"


def test_folder_without_a_bundle_is_refused_before_anything_runs(intaglio: Run, tmp_path: Path) -> None:
    code, printed, errors = intaglio("gpu-check", "--bundle", tmp_path)
    assert (code, printed) == (2, "")
    assert errors == f"intaglio: --bundle {tmp_path}: no bundle. Give the folder that `intaglio export` wrote.\n"


def test_targets_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "installed", lambda sm: ["tensorrt", "tensorrt-library", "tensorrt-rtx"])
    monkeypatch.setattr(gpu_check, "missing_provider", lambda target: None)
    assert gpu_check.bundle_targets(75) == ["ort-cuda", "tensorrt", "tensorrt-rtx"]
    monkeypatch.setattr(gpu_check, "missing_provider", lambda target: "no provider")
    monkeypatch.setattr(gpu_check, "installed", lambda sm: [])
    assert gpu_check.bundle_targets(75) == []
    assert workers.SECONDS == 600
