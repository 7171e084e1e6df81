"""Folders for TensorRT's own tools, and engines built from them by a program that knows nothing of Intaglio."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from intaglio.deploy import deploy_tensorrt
from intaglio.deploy.tensorrt.script import script
from intaglio.errors import BuildError, MissingExtraError, UsageError
from intaglio.exporters import export
from intaglio.files.hashes import sha256
from intaglio.graph_passes import compress
from intaglio.plugins import ort
from intaglio.runtime.engines.gpus import named

TRTEXEC = Path(__file__).parents[2] / "support" / "engines" / "trtexec.py"

if ort.library() is None:
    pytest.skip("no compiled kernels", allow_module_level=True)
pytest.importorskip("cuda.bindings.nvrtc")


def run_script(folder: Path, program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the folder's build.sh with trtexec over TensorRT-RTX, whose library is named as NVIDIA's archive names it."""
    libraries = importlib.util.find_spec("tensorrt_rtx_libs")
    if libraries is None or libraries.origin is None:
        pytest.skip("no TensorRT-RTX")
    program.mkdir()
    (program / "libtensorrt_rtx.so").symlink_to(Path(libraries.origin).parent / "libtensorrt_rtx.so.1")
    (program / "trtexec").write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(TRTEXEC)])} "$@"\n')
    (program / "trtexec").chmod(0o755)
    path = f"{program}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(program), "PYTHONPATH": ""}
    command = ["sh", str(folder / "build.sh"), *arguments]
    return subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)


def test_encoder_in_integers_is_built_without_intaglio(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    written = deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", gpu="t4", batch="1:2:4", sequence="1:8:16")
    done = run_script(tmp_path / "out", tmp_path / "program")
    assert (done.returncode, done.stderr) == (0, "")
    assert b"CudaKernel" in (tmp_path / "out" / "model.plan").read_bytes()
    assert written.plugins and written.graphs == ["model.onnx"]
    assert written.profiles["model.onnx"]["input_ids"] == {"min": [1, 1], "opt": [2, 8], "max": [4, 16]}


def test_decoder_with_caches_is_built_without_intaglio(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = make_decoder("llama")
    export(str(checkpoint), tmp_path / "float16", dtype="float16", check=False)
    compress(tmp_path / "float16", tmp_path / "rtn", recipe="rtn")
    deploy_tensorrt(tmp_path / "rtn", tmp_path / "out", gpu="a100", axes={"capacity": "64"})
    done = run_script(tmp_path / "out", tmp_path / "program", "--sm=80")
    assert (done.returncode, done.stderr) == (0, "")
    assert b"group_matmul" in (tmp_path / "out" / "model.plan").read_bytes()


def test_decoder_with_caches_of_8_bits_is_built_without_intaglio(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    checkpoint, _ = make_decoder("llama")
    export(str(checkpoint), tmp_path / "float16", dtype="float16", check=False)
    written = deploy_tensorrt(tmp_path / "float16", tmp_path / "out", gpu="a100", axes={"capacity": "64"}, cache_bits=8)
    assert written.plugins and written.cache_bits == 8
    done = run_script(tmp_path / "out", tmp_path / "program", "--sm=80")
    assert (done.returncode, done.stderr) == (0, "")
    plan = (tmp_path / "out" / "model.plan").read_bytes()
    assert b"cached_attention" in plan and b"quantize_cache" in plan
    key = next(value for value in onnx.load(tmp_path / "out" / "model.onnx").graph.input if "past_key_0" in value.name)
    assert key.type.tensor_type.elem_type == onnx.TensorProto.FLOAT  # four bytes of a slot


def test_caches_of_8_bits_are_of_decoders(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--cache-bits is for decoders"):
        deploy_tensorrt(tiny_bundle, tmp_path / "out", gpu="a100", cache_bits=8)
    assert not (tmp_path / "out").exists()


def test_bundle_of_standard_operators_needs_no_library(tiny_bundle: Path, tmp_path: Path) -> None:
    written = deploy_tensorrt(tiny_bundle, tmp_path / "out", gpu="a100")
    assert not written.plugins
    assert sorted(written.files) == ["build.sh", "model.onnx"]
    assert "--dynamicPlugins" not in (tmp_path / "out" / "build.sh").read_text()
    done = run_script(tmp_path / "out", tmp_path / "program", "--sm=80")
    assert (done.returncode, done.stderr) == (0, "")


def test_both_graphs_of_an_encoder_decoder_are_written(
    make_encoder_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    _, bundle = make_encoder_decoder("t5")
    written = deploy_tensorrt(bundle, tmp_path / "out", gpu="a100")
    assert written.graphs == ["model.onnx", "encoder.onnx"]
    text = (tmp_path / "out" / "build.sh").read_text()
    assert text.count('"$TRTEXEC" --stronglyTyped') == 2
    assert "--onnx=encoder.onnx --saveEngine=encoder.plan" in text


def test_every_file_is_in_the_manifest(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    deploy_tensorrt(tiny_int8_bundle, folder, gpu="t4")
    manifest = json.loads((folder / "tensorrt.json").read_text())
    assert manifest["gpu"] == "t4" and manifest["sm"] == 75
    assert {path.name for path in folder.iterdir()} == {*manifest["files"], "tensorrt.json"}
    for name, record in manifest["files"].items():
        assert (record["sha256"], record["bytes"]) == (sha256(folder / name), (folder / name).stat().st_size)
    nodes = onnx.load(folder / "model.onnx").graph.node
    assert {node.op_type for node in nodes if node.domain == "intaglio"} == {"CudaKernel"}


def test_a_folder_is_replaced_only_on_request_and_nothing_else_is(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", gpu="t4")
    with pytest.raises(UsageError, match="the directory exists"):
        deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", gpu="a100")
    assert deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", gpu="a100", force=True).sm == 80
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="--force replaces folders for TensorRT only"):
        deploy_tensorrt(tiny_int8_bundle, tmp_path / "mine", gpu="t4", force=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "v100"}, "--gpu v100: unknown, expected one of t4,"),
        ({"gpu": "t4", "batch": "8:1:4"}, "--batch 8:1:4: expected 0 < MIN <= OPT <= MAX"),
        ({"gpu": "t4", "axes": {"colour": "3"}}, "axis colour: the bundle's inputs have batch, sequence"),
    ],
)
def test_wrong_options_are_named_and_nothing_is_written(
    tiny_int8_bundle: Path, tmp_path: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_nothing(tiny_int8_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", None)
    from intaglio.plugins.cuda import compiler

    compiler._nvrtc.cache_clear()
    with pytest.raises((MissingExtraError, BuildError), match="nvrtc"):
        deploy_tensorrt(tiny_int8_bundle, tmp_path / "out", gpu="t4")
    compiler._nvrtc.cache_clear()
    assert list(tmp_path.iterdir()) == []


def test_missing_trtexec_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    deploy_tensorrt(tiny_bundle, tmp_path / "out", gpu="a100")
    environment = {**os.environ, "TRTEXEC": "/opt/none/trtexec"}
    command = ["sh", str(tmp_path / "out" / "build.sh")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "/opt/none/trtexec: not found. Set TRTEXEC to its path.\n"


@pytest.mark.parametrize("given", [{"TRTEXEC": "bin/trtexec"}, {"TRTEXEC": "./bin/trtexec"}, {"PATH": "bin"}])
def test_trtexec_is_found_from_where_the_script_is_started(tmp_path: Path, given: dict[str, str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "build.sh").write_text(script(named("t4"), {"model.onnx": {}}, None))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "trtexec").write_text('#!/bin/sh\necho "$PWD" "$1"\n')
    (tmp_path / "bin" / "trtexec").chmod(0o755)
    environment = {**os.environ, **given}
    environment["PATH"] = f"{environment['PATH']}:{os.environ['PATH']}"
    command = ["sh", "out/build.sh"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{tmp_path / 'out'} --")


def test_names_are_quoted_for_the_shell(tmp_path: Path) -> None:
    name = "x; touch $(hacked) 'y'"
    shapes = {name: {"min": [1, 2], "opt": [3, 4], "max": [5, 6]}}
    (tmp_path / "build.sh").write_text(script(named("t4"), {"model.onnx": shapes}, None))
    (tmp_path / "echo").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "echo").chmod(0o755)
    environment = {**os.environ, "TRTEXEC": str(tmp_path / "echo")}
    command = ["sh", str(tmp_path / "build.sh"), "--verbose now"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"--maxShapes={name}:5x6" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "--verbose now"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build.sh", "echo"]
