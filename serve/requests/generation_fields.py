"""The fields that all requests for generated text share, and the requests to the scheduler that they become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.languages import language_token
from intaglio.runtime.generation.requests.prompt_encoder import Prompt
from intaglio.runtime.generation.requests.request import GenerationRequest
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.serve.models.model import DecoderModel
from intaglio.serve.responses.errors import invalid, unsupported

Count = Annotated[int, Meta(ge=1, le=1 << 31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]

MAX_STOPS = 16
DIGITS = 10  # of a token id


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool = False  # a last event with the number of tokens
    include_obfuscation: bool = False  # this server adds none


class LoraChoice(msgspec.Struct, forbid_unknown_fields=True):
    """An adapter of the model, by its place among them, and the factor of its change."""

    id: Annotated[int, Meta(ge=0)]
    scale: Annotated[float, Meta(ge=-100, le=100)] = 1.0


class GenerationFields(msgspec.Struct, kw_only=True):
    """Generation parameters; names and defaults as in OpenAI's API, otherwise as in vLLM."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Fraction = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=1 << 31)] = 0  # 0 and -1: all tokens
    min_p: Fraction = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Seed | None = None
    n: Count = 1
    stop: str | Annotated[list[str], Meta(max_length=MAX_STOPS)] = ()  # type: ignore[assignment]
    ignore_eos: bool = False
    user: str | None = None  # returned by /v1/responses, and not used
    structured_outputs: dict[str, Any] | None = None  # see `constraints`
    source_language: str | None = None  # codes of a model that translates, see `GenerationRequest`
    target_language: str | None = None
    lora: list[LoraChoice] | None = None  # as in llama.cpp's server, see `adapter`

    def adapter(self, model: DecoderModel) -> tuple[str | None, float]:
        """The name of the adapter and its factor: the model's, or that of `lora`. Raises `ApiError` for several."""
        names, lora = model.worker.generator.adapter_names, self.lora or ()
        if wrong := [each.id for each in lora if each.id >= len(names)]:
            raise invalid(f"lora: adapter {wrong[0]} does not exist, the model has {len(names)}, from 0.", "lora")
        chosen = [each for each in lora if each.scale != 0]
        if len(chosen) > 1:
            raise invalid(
                f"lora: {len(chosen)} adapters, expected one at most. Set the scale of the others to 0.", "lora"
            )
        if self.lora is not None and model.adapter is not None:
            raise invalid("lora: the model's name chooses an adapter already. Leave one of the two out.", "lora")
        return (names[chosen[0].id], chosen[0].scale) if chosen else (model.adapter, 1.0)

    def end_tokens(self, model: DecoderModel) -> frozenset[int]:
        """The tokens that end a text: none with `ignore_eos`."""
        return frozenset() if self.ignore_eos else model.worker.generator.ends

    def check_languages(self, model: DecoderModel) -> None:
        """Raise `ApiError` for a language that the model does not know."""
        for name, code in (("source_language", self.source_language), ("target_language", self.target_language)):
            try:
                if code is not None:
                    language_token(model.worker.generator.bundle.manifest.encoder, code)
            except UsageError as error:
                raise invalid(f"{name}: {error}", name) from error

    def sampling(self, vocabulary: int) -> Sampling:
        """The sampling parameters, for a model with token ids below `vocabulary`. Raises `ApiError`."""
        bias: dict[int, float] = {}
        for token, more in (self.logit_bias or {}).items():
            if len(token) > DIGITS or not token.isascii() or not token.isdigit() or int(token) >= vocabulary:
                raise invalid(f"logit_bias: {token[:20]!r} is not a token id from 0 to {vocabulary - 1}.", "logit_bias")
            bias[int(token)] = more
        return Sampling(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=bias,
        )

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end a text. Raises `ApiError` for an empty one."""
        found = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in found:
            raise invalid("stop: a string is empty. Write at least one character, or leave it out.", "stop")
        return found

    @property
    def reports_usage(self) -> bool:
        """Whether a stream ends with the number of tokens. Raises `ApiError` for options of a stream without one."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options: only for a stream. Set stream to true, or leave it out.", "stream_options")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise unsupported("stream_options.include_obfuscation")
        return self.stream_options is not None and self.stream_options.include_usage


def generation_requests(
    fields: GenerationFields,
    model: DecoderModel,
    prompts: Sequence[Prompt | Sequence[int]],
    max_new_tokens: int | None,
    logprobs: int | None,
    constraints: Sequence[LogitConstraint | None],
    keep_special: frozenset[int] = frozenset(),
) -> list[GenerationRequest]:
    """The requests for `fields.n` texts after each prompt, in order. Raises `ApiError` for values out of range.

    `max_new_tokens`: None: up to the model's limit. `logprobs`: see `GenerationRequest`. `constraints`: one per text.
    `keep_special`: special tokens that are part of the text.
    """
    generator, sampling, stops = model.worker.generator, fields.sampling(model.vocabulary), fields.stops
    fields.check_languages(model)
    adapter, scale = fields.adapter(model)
    numbered = [(prompt, choice) for prompt in prompts for choice in range(fields.n)]
    try:
        return [
            GenerationRequest(
                prompt,
                sampling,
                stops,
                max_new_tokens or model.max_tokens,
                None if fields.seed is None else (fields.seed % (1 << 64), choice),
                generator.method,
                ignore_eos=True,
                end_tokens=fields.end_tokens(model),
                constraint=constraint,
                logprobs=logprobs,
                keep_special=keep_special,
                source_language=fields.source_language,
                target_language=fields.target_language,
                adapter=adapter,
                adapter_scale=scale,
            )
            for (prompt, choice), constraint in zip(numbered, constraints, strict=True)
        ]
    except UsageError as error:
        raise invalid(str(error)) from error
