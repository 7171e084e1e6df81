"""The numbers of tokens of a response."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from intaglio.runtime.generation.scheduling.generated import Generated


class PromptTokensDetails(msgspec.Struct):
    """Details of the prompt's tokens."""

    cached_tokens: int = 0  # copied from the cache of an earlier request


class Usage(msgspec.Struct):
    """The tokens of all texts of an HTTP request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(results: Sequence[Generated], choices: int) -> Usage:
    """Count the tokens of `results`, where `choices` in a row have the same prompt, which counts once.

    Only the first of them counts for the cached tokens: the others always find the prompt in the cache.
    """
    prompts = sum(result.prompt_tokens for result in results[::choices])
    cached = sum(result.reused_tokens for result in results[::choices])
    written = sum(len(result.tokens) for result in results)
    return Usage(prompts, written, prompts + written, PromptTokensDetails(cached))
