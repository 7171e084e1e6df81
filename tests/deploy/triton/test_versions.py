"""Versions: added beside the others, which keep their bytes; refused where one configuration does not hold for both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.deploy import deploy_triton
from intaglio.errors import IntaglioError
from intaglio.files.hashes import sha256

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def repository(tiny_bundle: Path, tmp_path: Path) -> Path:
    """The first version of one model."""
    deploy_triton([f"texts={tiny_bundle}"], tmp_path / "models")
    return tmp_path / "models"


def hashes(repository: Path) -> dict[str, str]:
    return {str(path.relative_to(repository)): sha256(path) for path in repository.rglob("*") if path.is_file()}


def test_version_is_added_beside_the_others(
    intaglio: Run, tiny_bundle: Path, tiny_int8_bundle: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "models"
    deploy_triton([f"texts={tiny_bundle}", f"chat={tiny_decoder}"], output)
    before = hashes(output)
    command = ("deploy", "triton", f"texts={tiny_int8_bundle}", f"chat={tiny_decoder}", "-o", output)
    code, out, err = intaglio(*command, "--model-version", "3", "--json")
    assert (code, err) == (0, "")
    result, after = json.loads(out), hashes(output)
    assert {name for name in before if after[name] != before[name]} == {"repository.json"}
    assert {name.split("/")[1] for name in after.keys() - before.keys()} == {"3"}
    assert Bundle.open(output / "texts" / "3" / "bundle").manifest == Bundle.open(tiny_int8_bundle).manifest
    assert (output / "chat" / "3" / "model.py").read_bytes() == (output / "chat" / "1" / "model.py").read_bytes()
    manifest = json.loads((output / "repository.json").read_text())
    assert {name: record["sha256"] for name, record in manifest["files"].items()} | {
        "repository.json": after["repository.json"]
    } == after
    assert result["files"] == manifest["files"]
    assert result["models"] == manifest["models"] == [
        {"name": "texts", "backend": "python", "bundle": "texts", "versions": [1, 3], "loaded": [3]},
        {"name": "chat", "backend": "python", "bundle": "chat", "versions": [1, 3], "loaded": [3]},
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [output]
    code, out, err = intaglio(*command, "--model-version", "4", "--version-policy", "specific:1,4")
    assert code == 0 and "1, 3, 4" in out and "1, 4" in out


def test_policy_replaces_the_old_one_and_nothing_else(repository: Path, tiny_bundle: Path) -> None:
    """What a user has added to the configuration stays."""
    config = repository / "texts" / "config.pbtxt"
    added = (
        "# ours\nresponse_cache { enable: true }\n"
        'parameters: { key: "EXECUTION_ENV_PATH", value: { string_value: "/env.tar.gz" } }\n'
    )
    config.write_text(config.read_text() + added)
    old = config.read_text()
    for number, (policy, written, loaded) in enumerate(
        [
            ("latest:2", "version_policy {\n  latest {\n    num_versions: 2\n  }\n}\n", [1, 2]),
            ("all", "version_policy {\n  all {\n  }\n}\n", [1, 2, 3]),
            ("specific:1,4", "version_policy {\n  specific {\n    versions: 1\n    versions: 4\n  }\n}\n", [1, 4]),
            (None, "version_policy {\n  specific {\n    versions: 1\n    versions: 4\n  }\n}\n", [1, 4]),
        ],
        2,
    ):
        found = deploy_triton([f"texts={tiny_bundle}"], repository, model_version=number, version_policy=policy)
        assert config.read_text() == old + written
        assert (found.models[0].versions, found.models[0].loaded) == ([*range(1, number + 1)], loaded)


def test_removed_versions_leave_the_manifest(repository: Path, tiny_bundle: Path) -> None:
    (repository / "texts" / "1" / "model.py").unlink()
    for path in sorted((repository / "texts" / "1").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (repository / "texts" / "1").rmdir()
    result = deploy_triton([f"texts={tiny_bundle}"], repository, model_version=2)
    assert result.models[0].versions == [2]
    assert not [name for name in result.files if name.startswith("texts/1/")]


@pytest.mark.parametrize(
    ("name", "kind", "options", "message"),
    [
        ("texts", "encoder", {}, "models/texts/1 exists. Choose another --model-version"),
        ("other", "encoder", {}, "has no model 'other', expected one of texts"),
        ("texts", "encoder", {"force": True}, "--force replaces a repository, --model-version adds to it"),
        ("texts", "encoder", {"backend": "onnxruntime"}, "an ensemble of --backend onnxruntime has one configuration"),
        ("texts", "encoder", {"version_policy": "specific:2,7"}, "version 7 does not exist, expected some of 1, 2"),
        ("texts", "encoder", {"batch_size": 8}, "max_batch_size is 32, and 8 for the new version"),
        ("texts", "encoder", {"queue_delay": 1}, "max_queue_delay_microseconds is 2000, and 1 for the new version"),
        ("texts", "encoder", {"threads": 2}, 'parameters["threads"] is missing, and "2" for the new version'),
        ("texts", "decoder", {}, "max_batch_size is 32, and 0 for the new version"),
        ("texts", "classifier", {}, 'output[0].name is "embedding", and "label" for the new version'),
    ],
    ids=str,
)
def test_refusals_change_nothing(
    repository: Path, tiny_bundle: Path, tiny_decoder: Path, classifier: Path,
    name: str, kind: str, options: dict[str, Any], message: str,
) -> None:  # fmt: skip
    paths = {"encoder": tiny_bundle, "decoder": tiny_decoder, "classifier": classifier}
    before = hashes(repository)
    version = 1 if "exists" in message and not options else 2
    with pytest.raises(IntaglioError) as raised:
        deploy_triton([f"{name}={paths[kind]}"], repository, model_version=version, **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert hashes(repository) == before


def test_configuration_with_more_than_the_new_bundle_is_refused(repository: Path, tiny_bundle: Path) -> None:
    """The prompt of an older version would be put before the texts of the new one."""
    config = repository / "texts" / "config.pbtxt"
    prompt = 'parameters {\n  key: "prompt_name"\n  value {\n    string_value: "query"\n  }\n}\n'
    config.write_text(config.read_text() + prompt)
    with pytest.raises(IntaglioError, match=r'parameters\["prompt_name"\] is "query", and missing for the new version'):
        deploy_triton([f"texts={tiny_bundle}"], repository, model_version=2)


def test_labels_of_the_classes_belong_to_all_versions(classifier: Path, tmp_path: Path) -> None:
    deploy_triton([classifier], tmp_path / "models")
    labels = tmp_path / "models" / "mood" / "labels.txt"
    labels.write_text(labels.read_text().replace("good", "great"))
    with pytest.raises(IntaglioError, match=r"mood/labels\.txt: is not the file that the new version needs"):
        deploy_triton([classifier], tmp_path / "models", model_version=2)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("repository.json", "{", "Choose a repository that intaglio deploy triton wrote"),
        ("repository.json", '{"models": [], "files": {}, "format": 2}', "format 2, expected 1"),
        ("texts/config.pbtxt", 'name: "texts', "line 1: a string has no end. Expected a configuration of Triton"),
    ],
)
def test_damaged_repositories_are_refused(
    repository: Path, tiny_bundle: Path, file: str, content: str, message: str
) -> None:
    (repository / file).write_text(content)
    with pytest.raises(IntaglioError) as raised:
        deploy_triton([f"texts={tiny_bundle}"], repository, model_version=2)
    assert message in str(raised.value)
    assert not (repository / "texts" / "2").exists()
