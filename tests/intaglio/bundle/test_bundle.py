"""A bundle is complete or refused, and never visible half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from covering import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intaglio.bundle.bundle import Bundle, EngineRecord, Manifest, Source, TensorSpec, create
from intaglio.bundle.model_file import save
from intaglio.errors import BundleError, StorageError, UsageError


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "format": 1,
        "created_by": "a test",
        "source": Source("onnx", "nowhere"),
        "family": "",
        "architecture": "",
        "task": "",
        "dtype": "float32",
        "inputs": [TensorSpec("x", "float32", ("batch", 4))],
        "outputs": [TensorSpec("y", "float32", ("batch", 2048))],
    }
    return Manifest(**{**fields, **changes})


def graph() -> ir.Model:
    weight = onnx.numpy_helper.from_array(np.arange(2048 * 4, dtype=np.float32).reshape(4, 2048), "weight")
    nodes = [onnx.helper.make_node("MatMul", ["x", "weight"], ["y"])]
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", width])
        for name, width in (("x", 4), ("y", 2048))
    )
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], [weight]))
    return ir.serde.deserialize_model(proto)


def make(path: Path, external: bool = False) -> Path:
    with create(path) as draft:
        draft.manifest = manifest()
        save(graph(), draft.model_path, external_above=0 if external else 1 << 30)
    return path


def edit(path: Path, change: Any) -> None:
    content = json.loads((path / "bundle.json").read_text())
    change(content)
    (path / "bundle.json").write_text(json.dumps(content))


def test_bundle_round_trips(tmp_path: Path) -> None:
    bundle = Bundle.open(make(tmp_path / "b"))
    assert bundle.manifest.inputs == [TensorSpec("x", "float32", ("batch", 4))]
    assert set(bundle.manifest.files) == {"model.onnx"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: (b / "model.onnx").write_bytes((b / "model.onnx").read_bytes()[:-1]), "bytes, expected"),
        (lambda b: flip(b / "model.onnx"), "SHA-256"),
        (lambda b: (b / "model.onnx").unlink(), "missing"),
        (lambda b: (b / "bundle.json").unlink(), "no bundle.json in it"),
        (lambda b: (b / "bundle.json").write_text("{"), "damaged manifest"),
        (lambda b: (b / "bundle.json").write_bytes(b"\xff\xfe{}"), "not UTF-8 text but UTF-16"),
        (lambda b: (b / "bundle.json").write_text("[" * 100_000), "damaged manifest"),
        (lambda b: edit(b, lambda m: m.update(format=99)), "format 99"),
        (lambda b: edit(b, lambda m: m.update(format="1")), "damaged manifest"),
        (lambda b: edit(b, lambda m: m.update(format=0)), "damaged manifest"),
        (lambda b: edit(b, lambda m: m.pop("inputs")), "damaged manifest"),
        (lambda b: edit(b, lambda m: m["outputs"][0].update(name="z")), "lists the outputs z, model.onnx has y"),
        (lambda b: edit(b, lambda m: m["inputs"].clear()), "lists the inputs"),
        (
            lambda b: edit(b, lambda m: m["inputs"][0].update(shape=["batch", "batch"])),
            "x has shape ['batch', 'batch']",
        ),
        (lambda b: edit(b, lambda m: m["inputs"][0].update(shape=["rows", 4])), "but ['batch', 4] in model.onnx"),
        (lambda b: edit(b, lambda m: m["inputs"][0].update(shape=["batch", 4, 1])), "but ['batch', 4] in model.onnx"),
        (lambda b: edit(b, lambda m: m["outputs"][0].update(shape=["batch", 4])), "y has shape ['batch', 4]"),
        (lambda b: edit(b, lambda m: m["outputs"][0].update(dtype="int64")), "y has dtype 'int64', but float32"),
        (lambda b: edit(b, lambda m: m.update(axes={"batch": {"maximum": -5}})), "invalid length"),
        (lambda b: edit(b, lambda m: m["inputs"][0].update(shape=[-3, 4])), "invalid length"),
        (lambda b: edit(b, lambda m: m["inputs"][0].update(shape=[2**40, 4])), "invalid length"),
        (lambda b: edit(b, lambda m: m.update(truncation=-1)), "truncation is -1, expected 1 to 2147483647"),
        (lambda b: edit(b, lambda m: m.update(truncation=0)), "truncation is 0, expected 1 to"),
        (lambda b: edit(b, lambda m: m.update(truncation=2**31)), "truncation is 2147483648, expected 1 to"),
        (lambda b: edit(b, lambda m: m.update(truncation=2**70)), "truncation is 1180591620717411303424, expected 1"),
        (
            lambda b: edit(b, lambda m: m["inputs"][0].update(dtype="float1e9")),
            "x has dtype 'float1e9', expected one",
        ),
        (
            lambda b: edit(b, lambda m: m.update(layers={str(n): "x" * 90 for n in range(90_000)})),
            "expected at most 83886",
        ),
        (lambda b: edit(b, lambda m: m["files"].clear()), "model.onnx is not listed"),
        (lambda b: edit(b, lambda m: m["files"].update({"../x": {"sha256": "", "bytes": 0}})), "stays inside"),
        (lambda b: edit(b, lambda m: m["files"].update({"/etc/passwd": {"sha256": "", "bytes": 0}})), "stays inside"),
    ],
)
def test_damage_is_reported_in_one_line(damage: Any, message: str, tmp_path: Path) -> None:
    path = make(tmp_path / "b")
    damage(path)
    with pytest.raises(BundleError) as raised:
        Bundle.open(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_manifest_is_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = make(tmp_path_factory.mktemp("cut") / "b")
    content = (path / "bundle.json").read_bytes()
    (path / "bundle.json").write_bytes(content[: data.draw(st.integers(0, len(content) - 3))])
    with pytest.raises(BundleError):
        Bundle.open(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": -1}, "layers is -1, expected 1 to"),
        ({"layers": 10**12}, "layers is 1000000000000, expected 1 to"),
        ({"layers": 3}, "3 layers with 4 heads of 8 in the cache, but the 4 caches of its graph"),
        ({"heads": 0}, "heads is 0, expected 1 to"),
        ({"kv_heads": 8}, "2 layers with 8 heads of 8"),
        ({"head_dim": 10**12}, "head_dim is 1000000000000, expected 1 to"),
        ({"head_dim": 16}, "2 layers with 4 heads of 16"),
        ({"vocab_size": 0}, "vocab_size is 0, expected 1 to"),
        ({"vocab_size": 10**9}, "vocab_size is 1000000000, expected 272 to 272"),
        ({"max_positions": 0}, "max_positions is 0, expected 1 to"),
        ({"sliding_window": -5}, "sliding_window is -5, expected 1 to"),
        ({"eos_token_ids": [256, -1]}, "eos_token_ids[1] is -1, expected 0 to 271"),
        ({"bos_token_id": 272}, "bos_token_id is 272, expected 0 to 271"),
        ({"drafts": 10**9}, "drafts is 1000000000, expected 0 to"),
        ({"drafts": 2}, "drafts is 2, expected 0 to 0"),  # its graph has no draft logits
        ({"exit_layer": 3}, "exit_layer is 3, expected 0 to 2"),
    ],
)
def test_invalid_decoder_numbers_are_refused(
    changes: dict[str, Any], message: str, tiny_decoder: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(tiny_decoder, tmp_path / "b"))
    edit(path, lambda m: m["decoder"].update(changes))
    with pytest.raises(BundleError) as raised:
        Bundle.open(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_linked_file_is_compared_with_its_hash(tmp_path: Path) -> None:
    path = make(tmp_path / "b")
    outside = tmp_path / "outside.onnx"
    (path / "model.onnx").rename(outside)
    (path / "model.onnx").symlink_to(outside)
    assert Bundle.open(path).model_path == path / "model.onnx"
    outside.write_bytes(outside.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match="SHA-256"):
        Bundle.open(path)


def test_external_data_outside_the_bundle_is_refused_despite_valid_hashes(tmp_path: Path) -> None:
    path = make(tmp_path / "b", external=True)
    (path / "model.onnx.data").rename(tmp_path / "stolen")
    model = onnx.load(path / "model.onnx", load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = "../stolen"
    with create(tmp_path / "evil") as draft:
        draft.manifest = manifest()
        draft.model_path.write_bytes(model.SerializeToString())
    with pytest.raises(BundleError, match=r"\.\./stolen"):
        Bundle.open(tmp_path / "evil")


def test_external_data_without_a_hash_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "b", external=True)
    assert Bundle.open(path).manifest.files.keys() == {"model.onnx", "model.onnx.data"}
    edit(path, lambda m: m["files"].pop("model.onnx.data"))
    with pytest.raises(BundleError, match="is not listed in"):
        Bundle.open(path)


@pytest.mark.parametrize("place", ["initializer", "sparse initializer", "sparse constant"])
@pytest.mark.parametrize("location", ["unlisted", "../../stolen"])
def test_external_data_of_an_engine_without_a_hash_is_refused(location: str, place: str, tmp_path: Path) -> None:
    path = make(tmp_path / "b", external=True)
    model = onnx.load(path / "model.onnx", load_external_data=False)
    data = next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location")
    stored = path / "engines" / location
    (path / "engines").mkdir()
    shutil.copy(path / data.value, stored)
    if place == "initializer":
        data.value = location
    else:
        hidden_data(model, place, location)
        shutil.copy(path / data.value, path / "engines" / data.value)
        listed = f"engines/{data.value}"
        Bundle.open(path).add_files({listed: (path / listed).read_bytes()})
    record = EngineRecord("engines/ort-cpu.onnx", "ort-cpu", "onnxruntime 1.0", 1)
    Bundle.open(path).add_files({record.path: model.SerializeToString()}, [record])
    with pytest.raises(BundleError, match="external data"):
        Bundle.open(path)


def elsewhere(location: str) -> onnx.TensorProto:
    """A tensor of one element in another file."""
    tensor = onnx.TensorProto(name="s", data_type=onnx.TensorProto.FLOAT, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def sparse(location: str) -> onnx.SparseTensorProto:
    return onnx.helper.make_sparse_tensor(elsewhere(location), onnx.helper.make_tensor("i", 7, [1], [0]), [3])


def hidden_data(model: onnx.ModelProto, place: str, location: str) -> None:
    """Add a tensor with external data to `model` at a `place` that is easy to miss."""
    constant = onnx.helper.make_node("Constant", [], ["s"])
    if place == "sparse initializer":
        model.graph.sparse_initializer.append(sparse(location))
    elif place == "sparse constant":
        constant.attribute.append(onnx.helper.make_attribute("sparse_value", sparse(location)))
        model.graph.node.append(constant)
    elif place == "sparse constant of a subgraph":
        constant.attribute.append(onnx.helper.make_attribute("sparse_value", sparse(location)))
        branch = onnx.helper.make_graph([constant], "branch", [], [onnx.helper.make_tensor_value_info("s", 1, [3])])
        model.graph.node.append(onnx.helper.make_node("If", ["c"], ["o"], then_branch=branch, else_branch=branch))
    else:
        constant.attribute.append(onnx.helper.make_attribute("value", elsewhere(location)))
        model.functions.append(onnx.helper.make_function("d", "F", [], ["s"], [constant], []))


@pytest.mark.parametrize(
    ("location", "message"),
    [("unlisted", "external data unlisted is not listed"), ("../s", r"stays inside"), ("*/_ORT_MEM_ADDR_/*", "memory")],
)
@pytest.mark.parametrize(
    "place", ["sparse initializer", "sparse constant", "sparse constant of a subgraph", "constant of a function"]
)
def test_external_data_is_found_in_every_kind_of_tensor(
    place: str, location: str, message: str, tmp_path: Path
) -> None:
    path = make(tmp_path / "b")
    model = onnx.load(path / "model.onnx")
    hidden_data(model, place, location)
    with create(tmp_path / "evil") as draft:
        draft.manifest = manifest()
        draft.model_path.write_bytes(model.SerializeToString())
    stored = tmp_path / "evil" / location
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(bytes(4))
    with pytest.raises(BundleError, match=message) as raised:
        Bundle.open(tmp_path / "evil")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device"), ValueError()])
@pytest.mark.parametrize("existing", [True, False])
def test_error_while_writing_keeps_the_previous_bundle(error: BaseException, existing: bool, tmp_path: Path) -> None:
    target = tmp_path / "b"
    if existing:
        make(target)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    expected = StorageError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), create(target, force=True) as draft:
        draft.model_path.write_bytes(b"half")
        raise error
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == (["b"] if existing else [])


def test_existing_output_needs_force(tmp_path: Path) -> None:
    make(tmp_path / "b")
    with pytest.raises(UsageError, match="--force"), create(tmp_path / "b"):
        pass
    with create(tmp_path / "b", force=True) as draft:
        draft.manifest = manifest(task="embed")
        save(graph(), draft.model_path)
    assert Bundle.open(tmp_path / "b").manifest.task == "embed"
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_force_does_not_remove_directories_other_than_bundles(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"has no bundle\.json"), create(tmp_path / "home", force=True):
        pass
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years of work"


def test_added_files_replace_old_ones_and_keep_the_engine_record(tmp_path: Path) -> None:
    bundle = Bundle.open(make(tmp_path / "b"))
    record = EngineRecord("engines/a.engine", "tensorrt-rtx", "library 1", 3, "t4", 75)
    bundle.add_files({"engines/a.engine": b"one"}, [record])
    bundle.add_files({"reports/r.json": b"{}"})
    bundle.add_files({"engines/a.engine": b"two"}, [record])
    opened = Bundle.open(tmp_path / "b")
    assert opened.manifest.engines == [record]
    assert (opened.path / "engines/a.engine").read_bytes() == b"two"
    assert set(opened.manifest.files) == {"model.onnx", "engines/a.engine", "reports/r.json"}


ADDING = """
import sys
from intaglio.bundle.bundle import Bundle
bundle = Bundle.open(sys.argv[1])
for number in range(20):
    bundle.add_files({f"reports/{sys.argv[2]}-{number}.json": b"{}"})
"""


def test_added_file_is_synced_before_the_manifest_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, engine = Bundle.open(make(tmp_path / "b")), tmp_path / "engine"
    engine.write_bytes(b"x" * 12345)
    kept: list[tuple[int, bool]] = []  # synced bytes, and whether the manifest listed the engine by then

    def fsync(descriptor: int) -> None:
        kept.append((os.fstat(descriptor).st_size, "engines/e" in (tmp_path / "b" / "bundle.json").read_text()))

    monkeypatch.setattr(os, "fsync", fsync)
    bundle.add_files({"engines/e": engine})
    assert kept[0] == (12345, False)
    assert "engines/e" in Bundle.open(tmp_path / "b").manifest.files


def test_concurrent_additions_lose_no_file(tmp_path: Path) -> None:
    path = make(tmp_path / "b")
    programs = [subprocess.Popen([sys.executable, "-P", "-c", ADDING, path, name]) for name in ("a", "b")]
    assert [program.wait(60) for program in programs] == [0, 0]
    assert len(Bundle.open(path).manifest.files) == 41


def test_failed_addition_leaves_a_valid_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(make(tmp_path / "b"))
    bundle.add_files({"engines/a.engine": b"one"}, [EngineRecord("engines/a.engine", "tensorrt", "l", 3)])
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if "engines" in str(target):
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StorageError, match="Free some space"):
        bundle.add_files({"engines/a.engine": b"two"})
    monkeypatch.undo()
    Bundle.open(tmp_path / "b")
    assert not list((tmp_path / "b").rglob(".*"))


@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", "a\\b"])
def test_files_are_added_only_inside_the_bundle(path: str, tmp_path: Path) -> None:
    bundle = Bundle.open(make(tmp_path / "b"))
    with pytest.raises(BundleError, match="stays inside"):
        bundle.add_files({path: b"x"})
