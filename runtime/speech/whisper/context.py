"""The tokens before the text of a window: a prompt, and the text of earlier windows."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.speech.whisper.window import Written
from intaglio.runtime.speech.whisper_options import WhisperOptions, invalid_option, parts_of

CERTAIN = 0.5  # temperature from which on a text is no context of the next one, OpenAI's value


class Context:
    """What a recording's next window begins with, as in transformers with `prompt_condition_type` first-segment.

    The prompt is before each window; with the text of earlier windows it is before the first of these, until it is cut.
    At most `limit` tokens, the last ones, are kept.
    """

    def __init__(self, prompt: Sequence[int], start: int | None, previous: bool, limit: int, first_time: int):
        """`start`: the token before all of it; None, if the model has none, with a prompt that is empty.

        `previous`: whether the text of earlier windows is part of it.
        """
        self._prompt, self._start, self._limit, self._first_time = list(prompt), start, limit, first_time
        self._history = list(prompt)
        self._previous = self._continued = previous

    def tokens(self) -> list[int]:
        """The tokens before the start token of the next window."""
        kept = (self._history if self._continued else self._prompt)[-self._limit :]
        return [self._start, *kept] if kept and self._start is not None else []

    def add(self, written: Written, segments: Sequence[Sequence[int]]) -> None:
        """Take the tokens of a window's segments; none, if it is silence."""
        for tokens in segments:
            both = len(tokens) > 2 and tokens[-2] >= self._first_time  # also the time at which the next one begins
            self._history += tokens[:-1] if both else tokens
        self._continued = self._previous and written.temperature < CERTAIN


def prompt_tokens(bundle: Bundle, tokenizer: Tokenizer, options: WhisperOptions) -> list[int]:
    """The tokens of the prompt in `options`. Raises `UsageError` for one with special tokens of the model."""
    text = options.prompt.strip()
    if not text:
        return []
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid_option("prompt", "is not valid text. Write it in UTF-8.") from error
    assert bundle.manifest.decoder is not None
    (end,) = bundle.manifest.decoder.eos_token_ids
    tokens: list[int] = tokenizer.encode(f" {text}", add_special_tokens=False).ids
    if special := [token for token in tokens if token >= end]:  # all special tokens, and the times, follow the end
        found = tokenizer.id_to_token(special[0])
        raise invalid_option("prompt", f"has {found}, a special token of the model: expected text. Leave it out.")
    return tokens


def new_context(bundle: Bundle, tokenizer: Tokenizer, options: WhisperOptions) -> Context:
    """The context of a recording. Raises as `prompt_tokens` does."""
    _, transcriber = parts_of(bundle)
    decoder = bundle.manifest.decoder
    assert decoder is not None
    return Context(
        prompt_tokens(bundle, tokenizer, options),
        transcriber.previous_start,
        options.conditions(transcriber),
        decoder.max_positions // 2 - 1,
        transcriber.no_timestamps + 1,
    )
