"""The result of one request."""

from __future__ import annotations

import msgspec

from intaglio.runtime.generation.text.logprobs import TokenLogprobs
from intaglio.runtime.strategies import Calls, Emitted, Seconds, Tokens


class Generated(msgspec.Struct):
    """The text generated after one prompt, with its statistics."""

    prompt: str  # as the model read it; for a conversation, the output of the chat template
    text: str  # without the prompt, special tokens, and the stop string
    tokens: list[int]  # all chosen tokens, including the end token
    trace: list[Emitted]  # the author of each token, in order, with the rejected drafts in between
    tokens_per_second: float  # without the tokens of the target model's first pass, which prefilled the prompt
    strategy: str
    calls: Calls
    processed: Tokens
    seconds_in: Seconds
    accepted: int
    rolled_back: int  # rejected draft tokens; of a draft tree, all tokens outside the accepted path
    acceptance: float | None  # acceptance rate: accepted fraction of the draft tokens; None without drafts
    blocks: float | None  # mean number of blocks run per token; None for strategies that skip none
    origins: int  # positions after which a self-drafting model computed drafts, in all passes
    stopped: str  # "eos", "stop" (string), "length" (max_new_tokens), "capacity" (of the model), "interrupted"
    prompt_tokens: int
    reused_tokens: int  # prompt tokens that the target model did not prefill, because a cache held them already
    queued_seconds: float  # from the request until it got a row of the batch
    prompt_seconds: float  # from then until the first tokens
    seconds: float  # from then until the last token
    logprobs: list[TokenLogprobs] | None = None  # one for each token, if the request asks for them
    stop_string: str | None = None  # the one that ended the text
