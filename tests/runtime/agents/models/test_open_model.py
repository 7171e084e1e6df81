"""Opening the model of an agent from a bundle or a URL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scripted_server import chunk, scripted, status, stream

from intaglio.errors import BundleError, UsageError
from intaglio.runtime.agents.models.model import End, ModelRequest
from intaglio.runtime.agents.models.open_model import open_model
from intaglio.runtime.generation.requests.message import Message

SECONDS = 60
REQUEST = ModelRequest([Message("user", "Why?")], 3)


async def read(source: str | Path, **options: Any) -> tuple[str, bool, End]:
    async with asyncio.timeout(SECONDS), open_model(source, **options) as model, model.stream(REQUEST) as pieces:
        *_, end = [piece async for piece in pieces]
    assert isinstance(end, End)
    return model.name, model.constrained, end


def test_bundle_opens_an_engine_with_its_options(chat_models: tuple[Path, Path]) -> None:
    name, constrained, end = asyncio.run(read(chat_models[1], draft=chat_models[0], strategy="speculative"))
    assert (name, constrained, end.usage.completion) == ("large", True, 3)


def test_url_opens_a_server_with_its_only_model() -> None:
    async def main(*names: str, **options: Any) -> Any:
        listed = status(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})
        answer = stream(chunk("a", "stop"))
        async with scripted(*([answer] if "model" in options else [listed, answer])) as running:
            found = await read(running.url, **options)
        return found, running.bodies[-1]["model"]

    assert asyncio.run(main("llama")) == (("llama", False, End((0, 0, 1, 1), "stop")), "llama")  # type: ignore[arg-type]
    assert asyncio.run(main(model="b", constrained=True))[0][:2] == ("b", True)
    with pytest.raises(UsageError, match=r"^the server has 2 models \(a, b\), expected the name of one\."):
        asyncio.run(main("a", "b"))
    with pytest.raises(UsageError, match=r"^the server has 0 models \(none\)"):
        asyncio.run(main())


def test_options_of_the_other_kind_are_rejected(chat_models: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=r"^model: only for a server, got the bundle .*large\. Leave it out\.$"):
        asyncio.run(read(chat_models[1], model="x"))
    with pytest.raises(UsageError, match=r"^draft: only for a bundle"):
        asyncio.run(read("http://127.0.0.1:9", draft="x"))


def test_bundle_without_template_is_rejected(trained_pair: tuple[Path, Path]) -> None:
    with pytest.raises(BundleError, match="has no chat template"):
        asyncio.run(read(trained_pair[0]))
