"""The input `sampling_parameters` of a decoder: JSON with vLLM's names, and the defaults of `intaglio generate`."""

from __future__ import annotations

import msgspec

from intaglio.errors import UsageError, one_line
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.generation.requests.prompt_encoder import Prompt
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.generation.requests.strategy_choice import sampling_of


class SamplingParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a text is generated, and when it ends."""

    max_tokens: int = 256
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    ignore_eos: bool = False


def generation_request(generator: TextGenerator, prompt: Prompt, parameters: str | None) -> GenerationRequest:
    """The request for a text after `prompt`. Raises `UsageError` for fields that are unknown or out of range."""
    try:
        given = msgspec.json.decode(parameters or "{}", type=SamplingParameters)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"sampling_parameters: {one_line(error)}. Expected a JSON object with some of "
            f"{', '.join(SamplingParameters.__struct_fields__)}."
        ) from error
    filters = {name: getattr(given, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    penalties = {name: getattr(given, name) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")}
    _, sampling = sampling_of(None, "greedy", filters, penalties)
    return GenerationRequest(
        prompt,
        sampling,
        [given.stop] if isinstance(given.stop, str) else given.stop,
        given.max_tokens,
        None if given.seed is None else (given.seed, 0),  # as the first text of `intaglio generate --seed`
        generator.method,
        ignore_eos=True,
        end_tokens=frozenset() if given.ignore_eos else generator.ends,
    )
