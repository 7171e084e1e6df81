"""Replicas open the bundle that was deployed and no other; wrong arguments of an application are refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from intaglio.deploy.ray.settings import RayAdapter, RayBundle, adapter_hashes, read_settings
from intaglio.errors import BundleError, SourceError, UsageError
from intaglio.files.hashes import sha256


def test_another_bundle_at_the_path_is_refused(tiny_bundle: Path, tiny_decoder: Path, tmp_path: Path) -> None:
    deployed = RayBundle(str(tmp_path / "model"), sha256(tiny_bundle / "bundle.json"))
    shutil.copytree(tiny_bundle, tmp_path / "model")
    assert deployed.open().path == tmp_path / "model"
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(tiny_decoder, tmp_path / "model")
    with pytest.raises(BundleError, match="expected"):
        deployed.open()


def test_another_adapter_at_the_path_is_refused(tmp_path: Path) -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    deployed = RayAdapter(str(tmp_path), adapter_hashes(tmp_path))
    assert deployed.check() == str(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes(b'{"lora_alpha": 2}')
    with pytest.raises(SourceError, match="Use the adapter that was deployed"):
        deployed.check()


def test_adapters_are_models_of_their_decoder() -> None:
    adapter = {"path": "/adapters/sql", "sha256": {"adapter_config.json": "0"}}
    settings = read_settings(
        {"models": {"chat": MODELS["chat"] | {"adapters": {"sql": adapter}}, "other": MODELS["chat"]}}
    )
    assert settings.adapted == {"chat:sql": "chat"}


MODELS = {"chat": {"bundle": {"path": "/models/chat", "sha256": "0"}}}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"models": MODELS, "colour": 1}, "colour"),
        ({"models": {"chat": {"path": "/models/chat"}}}, "models"),
        ({"models": MODELS, "threads": "many"}, "threads"),
        ({"models": MODELS, "limits": {"speed": 1}}, "speed"),
        ({"models": MODELS, "limits": {"rows": 0}}, "rows 0: expected at least 1"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_settings(args).options()


def test_limits_become_those_of_a_server() -> None:
    options = read_settings({"models": MODELS, "limits": {"rows": 3, "cors_origins": ["a"]}}).options(("key",))
    assert (options.rows, options.cors_origins, options.api_keys) == (3, ("a",), ("key",))
