"""Repositories are written whole or not at all; what Triton cannot run is refused by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton_plans import add_plans

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.plan_record import PlanOptions
from intaglio.deploy import deploy_triton
from intaglio.deploy.triton.model import WARM_UP
from intaglio.errors import IntaglioError
from intaglio.files.hashes import sha256
from intaglio.runtime.text.run_texts import run

Run = Callable[..., tuple[int, str, str]]


def test_manifest_names_every_file_that_was_written(
    intaglio: Run, tiny_bundle: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "models"
    code, out, err = intaglio("deploy", "triton", tiny_bundle, f"chat={tiny_decoder}", "-o", output, "--json")
    assert (code, err) == (0, "")
    manifest = json.loads((output / "repository.json").read_text())
    written = {str(path.relative_to(output)): path for path in output.rglob("*") if path.is_file()}
    assert manifest["files"].keys() | {"repository.json"} == written.keys()
    for name, record in manifest["files"].items():
        assert (record["sha256"], record["bytes"]) == (sha256(written[name]), written[name].stat().st_size)
    result = json.loads(out)
    assert result["models"] == manifest["models"] == [
        {"name": "tiny", "backend": "python", "bundle": "tiny", "versions": [1], "loaded": [1]},
        {"name": "chat", "backend": "python", "bundle": "chat", "versions": [1], "loaded": [1]},
    ]  # fmt: skip
    assert result["files"] == manifest["files"]
    assert Bundle.open(output / "tiny" / "1" / "bundle").manifest == Bundle.open(tiny_bundle).manifest


OPENED_AS_BY_TRITON = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime
graph = Path(sys.argv[1])
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(str(graph / "1" / "intaglio_operators.so"))
session = onnxruntime.InferenceSession(graph / "1" / "model.onnx", options)
feeds = {
    each.name: np.fromfile(graph / "warmup" / f"sentence_{each.name}", np.int64).reshape(1, -1)
    for each in session.get_inputs()
}
print(json.dumps(session.run(["sentence_embedding"], feeds)[0].tolist()))
"""


def test_graph_and_library_run_in_onnx_runtime_alone(tiny_int8_bundle: Path, tmp_path: Path) -> None:
    """Opened as Triton's backend does, without intaglio, on the tensors of the warm-up request."""
    deploy_triton([tiny_int8_bundle], tmp_path / "models", backend="onnxruntime")
    graph = tmp_path / "models" / "tiny_graph"
    command = [sys.executable, "-I", "-c", OPENED_AS_BY_TRITON, str(graph)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (expected,) = run(tiny_int8_bundle, [WARM_UP])
    np.testing.assert_allclose(found[0], np.asarray(expected.embedding), atol=1e-5)


def test_failure_leaves_nothing(tiny_bundle: Path, recogniser: Path, tmp_path: Path) -> None:
    with pytest.raises(IntaglioError, match="its task is 'transcribe', expected an encoder or a decoder"):
        deploy_triton([tiny_bundle, recogniser], tmp_path / "models")
    assert list(tmp_path.iterdir()) == []


def test_only_repositories_are_replaced(tiny_bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "models"
    deploy_triton([tiny_bundle], output)
    with pytest.raises(IntaglioError, match="the directory exists"):
        deploy_triton([tiny_bundle], output)
    deploy_triton([f"other={tiny_bundle}"], output, force=True)
    assert sorted(path.name for path in output.iterdir()) == ["other", "repository.json"]
    (output / "repository.json").unlink()
    with pytest.raises(IntaglioError, match="--force replaces model repositories only"):
        deploy_triton([tiny_bundle], output, force=True)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["encoder"], {"backend": "openvino"}, "backend 'openvino': expected one of python, onnxruntime, tensorrt"),
        (["encoder"], {"backend": "python", "gpus": ["t4"]}, "--gpu chooses TensorRT plans, and --backend is python"),
        (["encoder"], {"gpus": ["t4"]}, "has no TensorRT plan for t4. Build it on that GPU: intaglio build"),
        (["encoder"], {"backend": "tensorrt"}, "has no TensorRT plan for a GPU"),
        (["decoder"], {"backend": "onnxruntime"}, "--backend is for encoders, and none is given"),
        (["decoder"], {"gpus": ["t4"]}, "--gpu is for encoders, and none is given"),
        (["encoder"], {"strategy": "ngram"}, "--strategy needs exactly one decoder, got 0"),
        (["encoder"], {"batch_size": 0}, "--batch-size 0: expected at least 1"),
        (["encoder"], {"queue_delay": -1}, "--queue-delay -1: expected at least 0"),
        (["encoder"], {"mounted_at": "models"}, "--mounted-at models: expected an absolute path"),
        (["encoder"], {"target": "openvino"}, "target 'openvino': expected one of"),
        (["encoder"], {"prompt_name": "q"}, "--prompt-name 'q': expected one of the model's prompts"),
        (["encoder"], {"cache_bits": 8}, "--cache-bits is for decoders, and none is given"),
        (["decoder"], {"cache_bits": 5}, "--cache-bits 5: expected one of 8, 4"),
        (["decoder"], {"strategy": "speculative"}, "strategy 'speculative' needs a draft model"),
        (["a b=encoder"], {}, "model 'a b': Triton's names have letters"),
        (["x=encoder", "x_graph=encoder"], {"backend": "onnxruntime"}, "two models are named x_graph"),
        (["encoder"], {"model_version": 0}, "--model-version 0: expected at least 1"),
        (
            ["encoder"],
            {"backend": "onnxruntime", "model_version": 2},
            "--model-version is for models on --backend python",
        ),
        (["encoder"], {"version_policy": "latest"}, "--version-policy latest: expected all, latest:N or specific:N,N"),
        (["encoder"], {"version_policy": "specific:1,3"}, "version 3 does not exist, expected some of 1"),
        (["x=encoder", "x=decoder"], {}, "two bundles are named 'x'"),
        (["int8"], {"backend": "onnxruntime", "target": "ort-cuda"}, "on the CPU only. Use --target ort-cpu"),
    ],
    ids=str,
)
def test_refusals(
    tiny_bundle: Path, tiny_decoder: Path, tiny_int8_bundle: Path, tmp_path: Path,
    names: list[str], options: dict[str, Any], message: str,
) -> None:  # fmt: skip
    paths = {"encoder": tiny_bundle, "decoder": tiny_decoder, "int8": tiny_int8_bundle}
    bundles = [f"{name}{equals}{paths[kind]}" for name, equals, kind in (each.rpartition("=") for each in names)]
    with pytest.raises(IntaglioError) as raised:
        deploy_triton(bundles, tmp_path / "models", **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_engines_of_tensorrt_rtx_are_refused_by_name(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = add_plans(tiny_bundle, tmp_path / "rtx", ("tensorrt-rtx", "a100"))
    with pytest.raises(
        IntaglioError, match=r"tensorrt-rtx-a100\.engine: of TensorRT-RTX, which Triton's tensorrt backend cannot load"
    ):
        deploy_triton([bundle], tmp_path / "models", gpus=["a100"])


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([], "are both for compute capability 8.6, and Triton takes one for each. Choose with --gpu"),
        (["t4", "a10"], "its plans are of tensorrt 10.13.3, tensorrt 10.14.0"),
        (["a100"], "a plan takes 2 texts or more, expected 1"),
        (["l4"], "tensorrt-l4.engine has no weights, and Triton's tensorrt backend sets none"),
    ],
)
def test_plans_that_one_server_cannot_load_are_refused(
    tiny_bundle: Path, tmp_path: Path, gpus: list[str], message: str
) -> None:
    bundle = add_plans(
        tiny_bundle, tmp_path / "plans", ("tensorrt", "a10"), ("tensorrt", "rtx-3090"),
        ("tensorrt", "t4", {"library": "tensorrt 10.14.0"}), ("tensorrt", "a100", {"smallest": [2, 1]}),
        ("tensorrt", "l4", {"plan": PlanOptions(strip_weights=True)}),
    )  # fmt: skip
    with pytest.raises(IntaglioError, match=message):
        deploy_triton([bundle], tmp_path / "models", backend="tensorrt", gpus=gpus)
    deploy_triton([bundle], tmp_path / "models", gpus=["rtx-3090"])
    assert (tmp_path / "models" / "plans_graph" / "1" / "tensorrt-rtx-3090.engine").is_file()
