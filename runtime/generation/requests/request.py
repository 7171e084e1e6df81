"""A generation request: a prompt with all options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt, Prompt
from intaglio.runtime.sampling.constraint import LogitConstraint
from intaglio.runtime.sampling.sampler import Sampling
from intaglio.runtime.strategies import STRATEGIES, Plain, Strategy


def check_limits(max_new_tokens: int, seed: int | Sequence[int] | None, stop: Sequence[str]) -> None:
    """Raise `UsageError` for values out of range."""
    if max_new_tokens < 1:
        raise UsageError(f"max new tokens {max_new_tokens}: expected at least 1.")
    if any(part < 0 for part in ([seed] if isinstance(seed, int) else seed or ())):
        raise UsageError(f"seed {seed}: expected 0 or more.")
    if "" in stop:
        raise UsageError("a stop string is empty, expected at least one character. Leave it out.")


@dataclass(frozen=True)
class GenerationRequest:
    """One text to generate. Raises `UsageError` for values out of range.

    The text depends on the request alone, not on the other requests in the batch; sampled with strategy auto, it also
    depends on the measured times of the models.
    """

    prompt: Prompt | Sequence[int] | EncodedPrompt  # a text, a conversation, or token ids
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()  # strings that end the text, none of them empty
    max_new_tokens: int = 256
    seed: int | Sequence[int] | None = None  # None: a different text each time, if tokens are sampled
    strategy: Strategy = field(default_factory=Plain)  # with its options
    strategy_name: str | None = None  # name in the result; None: its name in `STRATEGIES`
    ignore_eos: bool = False  # continue after the model's end tokens
    end_tokens: frozenset[int] = frozenset()  # additional tokens that end this text
    constraint: LogitConstraint | None = None
    priority: int = 0  # requests of higher priority start first
    reuse_prefix: bool = True  # copy the beginning of the prompt from a cache that holds it; False: prefill all of it
    keep_special: frozenset[int] = frozenset()  # special tokens to show in the text, such as markers of tool calls
    source_language: str | None = None  # code of the prompt's language; None: that which the tokenizer writes
    target_language: str | None = None  # code of the text's language; None: that of the bundle
    adapter: str | None = None  # name of one of the model's adapters; None: the model alone
    adapter_scale: float = 1.0  # the factor of its change
    logprobs: int | None = None  # record each token's log-probability, and this many alternatives; None: neither

    def __post_init__(self) -> None:
        check_limits(self.max_new_tokens, self.seed, self.stop)
        if not math.isfinite(self.adapter_scale):
            raise UsageError(f"adapter_scale {self.adapter_scale}: expected a finite number.")
        if self.logprobs is not None and self.logprobs < 0:
            raise UsageError(f"logprobs {self.logprobs}: expected 0 or more alternatives.")

    @property
    def name(self) -> str:
        """The name of the strategy."""
        if self.strategy_name is None and isinstance(self.strategy, Plain):
            return "greedy" if self.sampling.greedy else "sample"
        return self.strategy_name or next(name for name, kind in STRATEGIES.items() if kind is type(self.strategy))
