"""The languages of a translation: their tokens in the source, and at the start of the text."""

from __future__ import annotations

from collections.abc import Sequence

from intaglio.bundle.bundle import Encoder
from intaglio.errors import UsageError
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt

SHOWN = 8  # codes in an error


def in_language(encoder: Encoder | None, prompt: EncodedPrompt, language: str | None) -> EncodedPrompt:
    """`prompt` with the token of `language` in place of that which the tokenizer writes before or after every text.

    Raises `UsageError` for a language that the model does not know, and for a source without such a token.
    """
    if language is None:
        return prompt
    token, known = language_token(encoder, language), languages_of(encoder)
    ends = [place for place in (0, len(prompt.tokens) - 1) if prompt.tokens[place] in known.values()]
    if not ends:
        raise UsageError(
            f"source language {language}: the tokenizer of this model writes no language before or after a text. "
            "Leave the source language out."
        )
    tokens = list(prompt.tokens)
    tokens[ends[0]] = token
    return EncodedPrompt(prompt.text, tokens)


def start_tokens(encoder: Encoder | None, language: str | None) -> Sequence[int]:
    """The tokens that the decoder's sequence begins with, for a text in `language`; None: the model's own.

    The language follows the start token, unless that is one itself, as in the first mBART.

    Raises `UsageError` for a language that the model does not know.
    """
    if language is not None:
        token = language_token(encoder, language)
        assert encoder is not None, "it has languages"
        start = encoder.decoder_start_token_id
        return (token,) if start in encoder.languages.values() else (start, token)
    return () if encoder is None else encoder.start


def language_token(encoder: Encoder | None, language: str) -> int:
    """The token of a language. Raises `UsageError` if the model does not know it."""
    known = languages_of(encoder)
    if not known:
        raise UsageError(f"language {language}: the tokenizer of this model has no languages. Leave it out.")
    if language not in known:
        more = f" and {len(known) - SHOWN} more" if len(known) > SHOWN else ""
        raise UsageError(f"language {language}: expected one of {', '.join(sorted(known)[:SHOWN])}{more}.")
    return known[language]


def languages_of(encoder: Encoder | None) -> dict[str, int]:
    """The languages of a model, code -> token."""
    return {} if encoder is None else encoder.languages
