"""Routers of sentence-transformers: a route is exported as the library computes it, for texts and documents apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sentence_folders import TEXTS, Case, make

from intaglio.bundle.bundle import Bundle
from intaglio.cli import cli
from intaglio.errors import IntaglioError, SourceError
from intaglio.exporters import export
from intaglio.runtime import run
from intaglio.validation import validate

CLASSES = {"query": "DistilBertModel", "document": "BertModel"}


@pytest.fixture(scope="module")
def routed(make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two encoders of one width, with what follows both. Read-only."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Router

    folder = tmp_path_factory.mktemp("router")
    routes = {}
    for index, (route, class_name) in enumerate(CLASSES.items()):
        checkpoint = make_checkpoint(class_name, num_hidden_layers=1)
        made = make(Case(poolings=(("cls",), ("mean",))[index], after=()), checkpoint, folder / route)
        routes[route] = list(SentenceTransformer(str(made), device="cpu").children())
    model = SentenceTransformer(
        modules=[Router(routes, default_route="document"), Normalize()],
        prompts={"query": "find: ", "document": "text: "},
        device="cpu",
    )
    model.save(str(folder / "model"))
    return folder / "model"


def changed(routed: Path, folder: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A copy whose list of routes is edited."""
    copy = shutil.copytree(routed, folder / "changed")
    (path,) = copy.rglob("router_config.json")
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize("route", CLASSES)
def test_route_equals_the_library(route: str, routed: Path, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(routed), device="cpu")
    assert export(routed, tmp_path / "bundle", route=route).passed
    source = Bundle.open(tmp_path / "bundle").manifest.source
    assert source.route == route
    assert any(name.endswith("router_config.json") for name in source.sha256)
    assert not any(
        name.startswith(f"0_Router/{other}") for other in CLASSES if other != route for name in source.sha256
    )
    encode = {"query": model.encode_query, "document": model.encode_document}[route]
    found = [each.embedding for each in run(tmp_path / "bundle", TEXTS[:3], prompt_name=route)]
    np.testing.assert_allclose(np.array(found), encode(TEXTS[:3], batch_size=1), rtol=0, atol=1e-5)
    assert validate(tmp_path / "bundle").passed


def test_route_is_chosen_where_there_are_several(routed: Path, tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["export", str(routed), "-o", str(tmp_path / "bundle")], standalone_mode=False)
    with pytest.raises(SourceError, match=r"has the routes query, document, given none\. Choose one with --route\."):
        raise ran.exception or AssertionError(ran.output)
    with pytest.raises(SourceError, match="has the routes query, document, given 'other'"):
        export(routed, tmp_path / "bundle", route="other")
    one = changed(routed, tmp_path, lambda config: config["structure"].pop("query"))
    export(one, tmp_path / "bundle", check=False)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda config: config["types"].clear(), "route query has a module 'query_0_Transformer' without a type"),
        (lambda config: config["structure"].update(query=[]), "route query has no modules"),
        (lambda config: config["structure"].update(query="x"), "damaged"),
        (lambda config: config["structure"].update(query=["../../x"]), "route query has a module '../../x' without"),
        (lambda config: config["types"].update(query_0_Transformer="sentence_transformers.models.Router"), "is Router"),
        (
            lambda config: config["types"].update(query_0_Transformer="sentence_transformers.models.StaticEmbedding"),
            "the first module is StaticEmbedding",
        ),
        (lambda config: config.pop("structure"), "damaged"),
    ],
)
def test_damaged_routes_get_one_line(
    edit: Callable[[dict[str, Any]], object], message: str, routed: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=message):
        export(changed(routed, tmp_path, edit), tmp_path / "bundle", route="query")
    assert not (tmp_path / "bundle").exists()


def test_route_outside_of_the_folder_is_refused(routed: Path, tmp_path: Path) -> None:
    def edit(config: dict[str, Any]) -> None:
        config["types"]["../../../x"] = "sentence_transformers.models.Transformer"
        config["structure"]["query"] = ["../../../x"]

    with pytest.raises(SourceError, match="outside"):
        export(changed(routed, tmp_path, edit), tmp_path / "bundle", route="query")


def test_sources_without_routes_refuse_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"has no routes, given --route query\. Leave it out\."):
        export(tiny_checkpoint, tmp_path / "bundle", route="query")
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(IntaglioError, match="--route is for a Router"):
        export(tmp_path / "model.onnx", tmp_path / "bundle", route="query")
