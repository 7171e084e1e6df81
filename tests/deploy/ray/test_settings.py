"""Replicas open the bundle that was deployed and no other; wrong arguments of an application are refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from intaglio.deploy.ray.settings import RayBundle, read_settings
from intaglio.errors import BundleError, UsageError
from intaglio.files.hashes import sha256


def test_another_bundle_at_the_path_is_refused(tiny_bundle: Path, tiny_decoder: Path, tmp_path: Path) -> None:
    deployed = RayBundle(str(tmp_path / "model"), sha256(tiny_bundle / "bundle.json"))
    shutil.copytree(tiny_bundle, tmp_path / "model")
    assert deployed.open().path == tmp_path / "model"
    shutil.rmtree(tmp_path / "model")
    shutil.copytree(tiny_decoder, tmp_path / "model")
    with pytest.raises(BundleError, match="expected"):
        deployed.open()


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
