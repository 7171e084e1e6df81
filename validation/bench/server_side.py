"""A server at a URL, measured by concurrent clients in this process."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

from intaglio.errors import EngineError, UsageError
from intaglio.validation.bench.client import Client, RequestError
from intaglio.validation.bench.decoder import DEFAULT_PROMPT
from intaglio.validation.bench.load import Load, Round, Timing
from intaglio.validation.bench.prompts import of_words

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings"}
LONGEST_WAIT = 30.0  # seconds that a client waits at most because a server asks for it
SAME_NAME = (  # in `intaglio generate` and in a request
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
    "ignore_eos",
)  # fmt: skip


class ServerSide:
    """A server and its clients. A context manager.

    A client that is refused with `Retry-After` waits that long before its next request; the refused one counts as
    failed. Raises `EngineError` for a server that does not answer.
    """

    kind = "server"

    def __init__(
        self,
        url: str,
        api: str,
        model: str | None,
        key: str | None,
        timeout: float,
        options: Mapping[str, Any],
        prompts: Sequence[str] | None,
    ):
        """`api`: one of `PATHS`; `model`: by default the server's first; `options`: of `TextGenerator`."""
        self.subject, self._given = url, prompts
        self.unit = "texts" if api == "embeddings" else "tokens"
        self._api, self._body = api, _body(options)
        if api == "embeddings" and (unexpected := [name for name in options if name != "max_new_tokens"]):
            raise UsageError(f"--{unexpected[0].replace('_', '-')}: does not apply to embeddings. Leave it out.")
        self._client = Client(url, key, timeout)
        self._runner = asyncio.Runner()
        self._runner.run(self._client.__aenter__())
        try:
            self._model = model or self._first_model()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._runner:
            self._runner.run(self._client.__aexit__(None, None, None))

    def _first_model(self) -> str:
        try:
            names = self._runner.run(self._client.models())
        except RequestError as error:
            raise EngineError(
                f"{self.subject}: {error}. Check the URL and the key, and that the server runs."
            ) from error
        if not names:
            raise EngineError(f"{self.subject}: the server has no models. Load one, or name it with --model.")
        return names[0]

    def run(self, load: Load) -> Round:
        """Run a round."""
        return self._runner.run(self._round(load))

    async def _round(self, load: Load) -> Round:
        timings: list[Timing] = []
        errors: Counter[str] = Counter()
        messages: dict[str, str] = {}
        prompts = self._given or of_words(load.prompt_tokens or DEFAULT_PROMPT)
        began = time.perf_counter()
        arrivals = load.arrivals(began)

        async def client() -> None:
            for number, due in arrivals:
                await asyncio.sleep(due - time.perf_counter())
                try:
                    timings.append(await self._request(prompts[(load.first + number) % len(prompts)], due))
                except RequestError as error:
                    errors[error.kind] += 1
                    messages.setdefault(error.kind, error.message)
                    await asyncio.sleep(min(error.retry_after or 0.0, LONGEST_WAIT))

        async with asyncio.TaskGroup() as group:
            for _ in range(load.concurrency):
                group.create_task(client())
        seconds = time.perf_counter() - began
        return Round(seconds, timings, await self._client.resident_bytes(), dict(errors), messages)

    async def _request(self, prompt: str, due: float) -> Timing:
        """One request, whose latency counts from `due`."""
        if self._api == "embeddings":
            texts, tokens = await self._client.embed({"model": self._model, "input": [prompt]})
            return Timing(time.perf_counter() - due, texts, tokens)
        asked = {"messages": [{"role": "user", "content": prompt}]} if self._api == "chat" else {"prompt": prompt}
        reply = await self._client.complete(PATHS[self._api], {"model": self._model, **asked, **self._body})
        later = reply.tokens - 1
        return Timing(
            seconds=time.perf_counter() - due,
            units=reply.tokens,
            prompt_tokens=reply.prompt_tokens,
            first=reply.first - due,
            per_token=(reply.last - reply.first) / later if later > 0 else None,
        )


def _body(options: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a request; without a sampling option the text is greedy, as in `intaglio generate`."""
    if unexpected := [name for name in options if name not in (*SAME_NAME, "max_new_tokens", "stop")]:
        name = unexpected[0].replace("_", "-")
        raise UsageError(f"--{name}: a server chooses it. Leave it out, or give it to the server.")
    body = {name: options[name] for name in SAME_NAME if name in options}
    if not {"temperature", "top_k", "top_p", "min_p"} & set(body):
        body["temperature"] = 0.0
    return {**body, "max_tokens": options["max_new_tokens"], **({"stop": options["stop"]} if "stop" in options else {})}
