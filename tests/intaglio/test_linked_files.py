"""Bundles and models of links, as in the hub's cache, open, run and load like copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from intaglio.bundle.bundle import Bundle, create
from intaglio.bundle.external_data import read_data
from intaglio.bundle.model_file import load, parse, save
from intaglio.errors import BundleError, SourceError
from intaglio.exporters import export
from intaglio.exporters.onnx_file import adopt
from intaglio.files.hashes import inside_to_write
from intaglio.runtime import open_engine
from intaglio.runtime.engines.onnxruntime.custom_operators import runnable

WEIGHT = np.arange(5000, dtype=np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An ONNX file with external data in a subfolder: y = x + w."""
    (tmp_path / "model" / "weights").mkdir(parents=True)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "sum",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("y", onnx.TensorProto.FLOAT, [len(WEIGHT)])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    message = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "model" / "model.onnx"
    options = {"save_as_external_data": True, "location": "weights/w.data", "size_threshold": 0}
    onnx.save_model(message, str(path), **options)
    return path


def symbolic(source: Path, target: Path) -> None:
    target.symlink_to(os.path.relpath(source, target.parent))


def into_one_folder(folder: Path, linked: Path) -> None:
    """Link every file of `folder` under the same name in `linked` to a numbered file in one folder of blobs."""
    _link_all(folder, linked, lambda number: linked.parent / "blobs" / str(number), symbolic)


def into_many_folders(folder: Path, linked: Path) -> None:
    _link_all(folder, linked, lambda number: linked.parent / "objects" / str(number) / "object", symbolic)


def by_hard_links(folder: Path, linked: Path) -> None:
    _link_all(folder, linked, lambda number: linked.parent / "blobs" / str(number), os.link)


def _link_all(folder: Path, linked: Path, place: Callable[[int], Path], link: Callable[[Path, Path], object]) -> None:
    for number, file in enumerate(path for path in sorted(folder.rglob("*")) if path.is_file()):
        blob, target = place(number), linked / file.relative_to(folder)
        for parent in (blob.parent, target.parent):
            parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blob)
        link(blob, target)


LAYOUTS = [into_one_folder, into_many_folders, by_hard_links]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_linked_external_data_is_read(layout: Callable[[Path, Path], None], model: Path, tmp_path: Path) -> None:
    layout(model.parent, tmp_path / "linked")
    path = tmp_path / "linked" / model.name
    with open_engine(path) as engine:
        np.testing.assert_array_equal(engine.run({"x": np.ones(1, np.float32)})["y"], WEIGHT + 1)
    message = parse(path)
    read_data(message, path)
    np.testing.assert_array_equal(numpy_helper.to_array(message.graph.initializer[0]), WEIGHT)
    for mapped in (False, True):
        save(load(path, mapped), tmp_path / "copy.onnx")
        assert not any(each.external_data for each in parse(tmp_path / "copy.onnx").graph.initializer)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bundle_of_links_opens_and_runs(layout: Callable[[Path, Path], None], model: Path, tmp_path: Path) -> None:
    with create(tmp_path / "bundle") as draft:
        adopt(model, draft, {}, check=True)
        save(load(model), draft.model_path, external_above=0)
    layout(tmp_path / "bundle", tmp_path / "linked")
    assert (tmp_path / "linked" / "model.onnx.data").is_file()
    assert Bundle.open(tmp_path / "linked").manifest == Bundle.open(tmp_path / "bundle").manifest
    with open_engine(tmp_path / "linked") as engine:
        np.testing.assert_array_equal(engine.run({"x": np.ones(1, np.float32)})["y"], WEIGHT + 1)


@pytest.mark.parametrize(("layout", "copied"), [(into_one_folder, True), (by_hard_links, False)])
def test_only_symbolic_links_need_a_temporary_copy(
    layout: Callable[[Path, Path], None], copied: bool, model: Path, tmp_path: Path
) -> None:
    layout(model.parent, tmp_path / "linked")
    path = tmp_path / "linked" / model.name
    with runnable(path, None, ()) as opened:
        assert (opened != path) is copied


@pytest.mark.parametrize("layout", LAYOUTS)
def test_graph_with_linked_data_is_exported(layout: Callable[[Path, Path], None], model: Path, tmp_path: Path) -> None:
    layout(model.parent, tmp_path / "linked")
    export(tmp_path / "linked" / model.name, tmp_path / "bundle")
    assert not any(path.is_symlink() for path in (tmp_path / "bundle").rglob("*"))
    with open_engine(tmp_path / "bundle") as engine:
        np.testing.assert_array_equal(engine.run({"x": np.ones(1, np.float32)})["y"], WEIGHT + 1)


@pytest.mark.parametrize("name", ["../stolen", "/etc/passwd", "weights/../../stolen", "", "weights\\..\\..\\stolen"])
def test_paths_outside_the_folder_are_refused_by_every_reader(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "stolen").write_bytes(WEIGHT.tobytes())
    message = parse(model)
    next(entry for entry in message.graph.initializer[0].external_data if entry.key == "location").value = name
    model.write_bytes(message.SerializeToString())
    with pytest.raises(BundleError, match="stays inside"):
        read_data(message, model)
    with pytest.raises(SourceError, match="stays inside"):
        export(model, tmp_path / "bundle")


def test_dangling_link_names_its_target(model: Path, tmp_path: Path) -> None:
    export(model, tmp_path / "bundle")
    (tmp_path / "bundle" / "model.onnx").rename(tmp_path / "elsewhere.onnx")
    (tmp_path / "bundle" / "model.onnx").symlink_to("nowhere")
    with pytest.raises(BundleError, match=r"model\.onnx: .*a link to nowhere, which is missing"):
        Bundle.open(tmp_path / "bundle")


def test_links_to_another_folder_are_not_written_through(model: Path, tmp_path: Path) -> None:
    export(model, tmp_path / "bundle")
    (tmp_path / "outside").mkdir()
    (tmp_path / "bundle" / "reports").symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match="Replace the link by a folder"):
        Bundle.open(tmp_path / "bundle").add_files({"reports/new.json": b"{}"})
    assert not any((tmp_path / "outside").iterdir())
    assert inside_to_write(tmp_path / "bundle", "engines/x.onnx", "file") == tmp_path / "bundle" / "engines" / "x.onnx"
