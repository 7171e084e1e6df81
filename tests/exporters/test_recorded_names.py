"""A bundle contains no path of the machine that exported it, but its checkpoint is still found there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from intaglio.bundle.bundle import Bundle, Source
from intaglio.bundle.recorded_name import recorded_name
from intaglio.errors import SourceError
from intaglio.exporters import export, load_module
from intaglio.exporters.source_folders import folder_of, remember
from intaglio.graph_passes import compress
from intaglio.processes.temporary import sibling_directory
from intaglio.runtime import build
from intaglio.validation import validate

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def swept(folder: Path, hidden: Path) -> list[str]:
    """The files of `folder` that contain the path `hidden` or a parent of it."""
    names = [str(place).encode() for place in (hidden, *hidden.parents) if len(place.parts) > 2]
    return [str(path) for path in folder.rglob("*") if path.is_file() and any(n in path.read_bytes() for n in names)]


@pytest.mark.parametrize("given", [pytest.param("absolute", marks=pytest.mark.proof), "relative"])
def test_bundle_files_contain_no_absolute_path(
    given: str, tiny_checkpoint: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exports, calibrates, compresses, builds, validates against PyTorch and a bundle, and searches all bytes."""
    place = tmp_path / "a-secret-place"
    shutil.copytree(tiny_checkpoint, place / "checkpoint")
    (place / "texts.txt").write_text("one text\nanother one\n")
    monkeypatch.chdir(place)
    before = place if given == "absolute" else Path()
    export(before / "checkpoint", before / "bundle")
    compress(before / "bundle", before / "int8", "int8-qdq", calibration=before / "texts.txt")
    build(before / "int8", "ort-cpu")
    validate(before / "bundle", data=before / "texts.txt")
    validate(before / "int8", against=before / "bundle", data=before / "texts.txt")
    for name in ("bundle", "int8"):
        assert swept(place / name, place) == []
        assert Bundle.open(place / name).manifest.source.location == "checkpoint"
    assert Bundle.open(place / "int8").manifest.calibration.file == "texts.txt"
    reports = [json.loads(path.read_text()) for path in sorted((place / "int8" / "reports").glob("*.json"))]
    assert [report["inputs"]["source"] for report in reports] == ["texts.txt"]
    assert [report["expected"]["name"] for report in reports] == ["bundle on ort-cpu"]


def test_graph_of_another_tool_is_recorded_by_its_name(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path = tmp_path / "secret" / "model.onnx"
    path.parent.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    export(path, tmp_path / "bundle")
    assert Bundle.open(tmp_path / "bundle").manifest.source.location == "model.onnx"
    assert swept(tmp_path / "bundle", tmp_path) == []


@pytest.mark.parametrize(
    ("given", "recorded"),
    [("/home/ada/models/minilm", "minilm"), ("./minilm", "minilm"), ("models/minilm", "models/minilm"), ("/x/", "x")],
)
def test_recorded_names_omit_the_folders_of_an_absolute_path(given: str, recorded: str) -> None:
    assert recorded_name(given) == recorded == recorded_name(Path(given))


def source_of(folder: Path, bundle: Path) -> Source:
    return Source("local", folder.name, None, Bundle.open(bundle).manifest.source.sha256)


def test_checkpoint_is_found_at_its_export_path(
    tiny_checkpoint: Path, tiny_bundle: Path, cache: Path, tmp_path: Path
) -> None:
    here, there = (Path(shutil.copytree(tiny_checkpoint, tmp_path / name)) for name in ("here", "there"))
    source = source_of(here, tiny_bundle)
    assert folder_of(source.sha256) is None
    with pytest.raises(SourceError, match=r"source here: .* Give it with --against FOLDER"):
        load_module(source)
    remember(source.sha256, there)
    remember(source.sha256, here)
    assert folder_of(source.sha256) == here
    shutil.rmtree(here)
    assert folder_of(source.sha256) == there
    load_module(source)


def test_local_checkpoint_is_never_looked_up_on_the_hub(
    tiny_bundle: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(SourceError, match="not known on this machine"):
        load_module(source_of(tmp_path / "nowhere", tiny_bundle), download=True)


def test_note_that_another_process_is_writing_hides_no_other(cache: Path, tmp_path: Path) -> None:
    hashes = {"config.json": "00"}
    remember(hashes, tmp_path)
    (notes,) = (cache / "intaglio" / "sources").iterdir()
    with sibling_directory(notes / "note") as temporary:
        (temporary / "note").write_text("half a pa")
        (notes / "gone").symlink_to("removed after it was listed")
        (notes / "damaged").write_bytes(b"\xff\xfe")
        assert folder_of(hashes) == tmp_path


def test_unwritable_cache_is_ignored(
    tiny_checkpoint: Path, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    source = source_of(tiny_checkpoint, tiny_bundle)
    remember(source.sha256, tiny_checkpoint)
    assert folder_of(source.sha256) is None


def test_validate_accepts_the_folder_of_the_checkpoint(
    intaglio: Run, tiny_bundle_copy: Path, tiny_checkpoint: Path, cache: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(tiny_checkpoint, tmp_path / "moved")
    code, out, err = intaglio("validate", tiny_bundle_copy, "--against", moved, "--samples", "2", "--json")
    assert (code, err) == (0, "") and json.loads(out)["passed"]
    (moved / "config.json").write_text((moved / "config.json").read_text() + " ")
    code, _, err = intaglio("validate", tiny_bundle_copy, "--against", moved, "--samples", "2")
    assert code == 2 and "the bundle was exported from" in err
