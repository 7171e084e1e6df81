"""Open the model of an agent: a bundle, or a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

from intaglio.errors import UsageError
from intaglio.runtime.agents.models.engine_model import EngineModel
from intaglio.runtime.agents.models.model import Model
from intaglio.runtime.agents.models.server_model import ServerModel
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.generator_options import GeneratorOptions

SCHEMES = ("http://", "https://")
ROWS = 2  # of the batch: the joiner may begin before the planner's row is free


def is_url(source: str | Path) -> bool:
    """Whether a model is a server."""
    return str(source).lower().startswith(SCHEMES)


@asynccontextmanager
async def open_model(
    source: str | Path,
    *,
    model: str | None = None,
    api_key: str | None = None,
    constrained: bool | None = None,
    timeout: float | None = None,
    **options: Unpack[GeneratorOptions],
) -> AsyncIterator[Model]:
    """Open a bundle, or the server at an http(s) URL.

    Of a server: `model` is its name there, by default that of its only model; `api_key`, `constrained` and `timeout`
    as in `ServerModel`. Of a bundle: `options` as in `TextGenerator`, such as `draft` and `strategy`; by
    default two requests run at a time. Raises `UsageError` for options of the other kind, and as both do.
    """
    server = {"model": model, "api_key": api_key, "constrained": constrained, "timeout": timeout}
    given: dict[str, Any] = {name: value for name, value in server.items() if value is not None}
    if not is_url(source):
        if given:
            raise UsageError(f"{next(iter(given))}: only for a server, got the bundle {source}. Leave it out.")
        opening: GeneratorOptions = {"batch": ROWS, **options}
        generator = await asyncio.to_thread(lambda: TextGenerator(source, **opening))
        with generator:
            async with EngineModel(generator, Path(source).resolve().name) as engine:
                yield engine
        return
    if unknown := [name for name, value in options.items() if value not in (None, False)]:
        raise UsageError(f"{unknown[0]}: only for a bundle, and the server has its own. Leave it out.")
    given["model"] = model or await _only_model(str(source), api_key, timeout)
    async with ServerModel(str(source), **given) as opened:
        yield opened


async def _only_model(url: str, api_key: str | None, timeout: float | None) -> str:
    """Return the name of the server's model. Raises `UsageError` where there are several, or none."""
    limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    async with ServerModel(url, "", api_key, **limits) as server:
        names = await server.names()
    if len(names) != 1:
        shown = ", ".join(sorted(names)[:20]) or "none"
        raise UsageError(f"the server has {len(names)} models ({shown}), expected the name of one. Choose a model.")
    return names[0]
