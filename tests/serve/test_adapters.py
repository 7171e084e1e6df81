"""A decoder with adapters behind the API: a model for each, chosen by its name or by llama.cpp's field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import save_adapter
from served import Served, served

from intaglio.errors import UsageError
from intaglio.runtime.adapters.settings import CONFIG
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions

PROMPT = "the shared beginning of all of these prompts"


@pytest.fixture(scope="module")
def adapted(
    make_decoder: Callable[..., tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """A small random decoder, and two adapters of it."""
    checkpoint, bundle = make_decoder("llama", max_position_embeddings=128, chat="{{ messages[0].content }}")
    folder = tmp_path_factory.mktemp("adapters")
    first = save_adapter(checkpoint, folder / "sql", target_modules="all-linear")
    return bundle, [f"sql={first}", f"legal={save_adapter(checkpoint, folder / 'legal')}"]


@pytest.fixture(scope="module")
def server(adapted: tuple[Path, list[str]]) -> Iterator[Served]:
    bundle, adapters = adapted
    options = [each for adapter in adapters for each in ("--adapter", adapter)]
    with served(f"lm={bundle}", *options, "--rows", 4) as running:
        yield running


@pytest.fixture(scope="module")
def expected(adapted: tuple[Path, list[str]]) -> dict[str, str]:
    """The texts by the names of the models."""
    bundle, adapters = adapted
    with TextGenerator(bundle, adapter=adapters, max_new_tokens=12) as generator:
        found = {}
        for generator.chosen_adapter in (None, "sql", "legal"):
            name = f"lm:{generator.chosen_adapter}" if generator.chosen_adapter else "lm"
            found[name] = generator.write(PROMPT).whole().text
    assert len(set(found.values())) == 3
    return found


def complete(server: Served, model: str, **fields: Any) -> tuple[int, Any]:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    return server.post("/v1/completions", asked)


def test_requests_at_a_time_have_the_text_of_their_models(server: Served, expected: dict[str, str]) -> None:
    asked = [*expected] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda model: complete(server, model), asked))
    assert [found["choices"][0]["text"] for _, found in answers] == [expected[model] for model in asked]
    assert [found["model"] for _, found in answers] == asked


def test_adapters_are_listed_as_models(server: Served, expected: dict[str, str]) -> None:
    assert [each["id"] for each in server.get("/v1/models")[1]["data"]] == [*expected]
    assert server.get("/v1/models/lm:sql")[1]["max_model_len"] == 128


def test_chats_are_of_the_adapter(server: Served, expected: dict[str, str]) -> None:
    for model, text in expected.items():
        messages = [{"role": "user", "content": PROMPT}]
        body = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
        status, found = server.post("/v1/chat/completions", body)
        assert (status, found["choices"][0]["message"]["content"]) == (200, text)


def test_unknown_adapter_is_an_unknown_model(server: Served) -> None:
    status, found = complete(server, "lm:other")
    assert (status, found["error"]["code"]) == (404, "model_not_found")
    assert "lm:sql, lm:legal" in found["error"]["message"]


def test_llama_cpp_field_chooses_an_adapter(server: Served, expected: dict[str, str]) -> None:
    for lora, model in (
        ([{"id": 1, "scale": 1.0}], "lm:legal"),
        ([{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.0}], "lm:sql"),
        ([{"id": 0, "scale": 0.0}], "lm"),
        ([], "lm"),
    ):
        status, found = complete(server, "lm", lora=lora)
        assert (status, found["choices"][0]["text"]) == (200, expected[model])


def test_scale_multiplies_the_change(server: Served, adapted: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder = Path(adapted[1][0].partition("=")[2])
    settings = json.loads((folder / CONFIG).read_text())
    texts = {1.0: complete(server, "lm:sql")[1]["choices"][0]["text"]}
    for scale in (0.5, -2.0):
        shutil.copytree(folder, tmp_path / str(scale))
        (tmp_path / str(scale) / CONFIG).write_text(
            json.dumps(settings | {"lora_alpha": settings["lora_alpha"] * scale})
        )
        with TextGenerator(adapted[0], adapter=[tmp_path / str(scale)], max_new_tokens=12) as generator:
            texts[scale] = generator.write(PROMPT).whole().text
    assert len(set(texts.values())) == 3
    for scale in (*texts, *texts):
        status, found = complete(server, "lm", lora=[{"id": 0, "scale": scale}])
        assert (status, found["choices"][0]["text"]) == (200, texts[scale])


@pytest.mark.parametrize(
    ("model", "lora", "message"),
    [
        ("lm", [{"id": 2}], "adapter 2 does not exist, the model has 2"),
        ("lm", [{"id": 0, "scale": 101}], "lora"),
        ("lm", [{"id": 0}, {"id": 1}], "2 adapters, expected one at most"),
        ("lm", [{"id": 0}, {"id": 0, "scale": 0.5}], "2 adapters, expected one at most"),
        ("lm:sql", [{"id": 1}], "the model's name chooses an adapter already"),
        ("lm", [{"id": -1}], "lora"),
        ("lm", [{"id": 0, "path": "x"}], "lora"),
    ],
)
def test_other_choices_are_rejected(server: Served, model: str, lora: object, message: str) -> None:
    status, found = complete(server, model, lora=lora)
    assert status == 400
    assert message in found["error"]["message"]
    assert (found["error"]["param"] or "").startswith("lora")


def test_adapters_need_exactly_one_decoder(adapted: tuple[Path, list[str]], tiny_bundle: Path) -> None:
    bundle, adapters = adapted
    for bundles, count in (([f"a={bundle}", f"b={bundle}"], 2), ([tiny_bundle], 0)):
        with pytest.raises(UsageError, match=f"--adapter needs exactly one decoder, got {count}"):
            open_models(bundles, ServerOptions(), adapter=adapters)


def test_bundle_with_the_name_of_an_adapter_is_refused(adapted: tuple[Path, list[str]], tiny_bundle: Path) -> None:
    bundle, adapters = adapted
    with pytest.raises(UsageError, match="two models are named 'lm:sql'"):
        open_models([f"lm={bundle}", f"lm:sql={tiny_bundle}"], ServerOptions(), adapter=adapters)


def test_two_adapters_of_one_name_are_refused(adapted: tuple[Path, list[str]]) -> None:
    bundle, adapters = adapted
    with pytest.raises(UsageError, match="two adapters are named 'sql'"):
        open_models([bundle], ServerOptions(), adapter=[adapters[0], adapters[0]])
