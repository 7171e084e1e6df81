"""What was generated for one request."""

from __future__ import annotations

import msgspec

from intaglio.runtime.strategies import Calls, Seconds, Tokens, Written


class Generated(msgspec.Struct):
    """The text that was written after one prompt."""

    prompt: str  # as the model read it, which of a conversation is what the chat template made
    text: str  # without the prompt, special tokens, and the stop string
    tokens: list[int]  # all that were chosen, the one that ends the text among them
    trace: list[Written]  # who wrote each of them, in order; between them those that were rolled back
    tokens_per_second: float  # after those that the large model's first pass gave, which read the prompt
    strategy: str
    calls: Calls
    processed: Tokens
    seconds_in: Seconds
    accepted: int
    rolled_back: int  # of trees of drafts all tokens but those of the path that was taken
    acceptance: float | None  # the accepted part of what was drafted and reviewed; None where nothing was
    blocks: float | None  # that computed a token, mean; None for strategies that leave none out
    origins: int  # tokens that a model which drafts itself did so after, in all passes
    stopped: str  # by "eos", a "stop" string, the "length" asked for, the model's "capacity", or "interrupted"
    prompt_tokens: int
    reused_tokens: int  # of the prompt, those that the large model did not read, as a cache held them already
    queued_seconds: float  # from the request until a row of the batch was free for it
    prompt_seconds: float  # from then until the first tokens
    seconds: float  # from then until the last token
