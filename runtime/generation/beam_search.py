"""Beam search: of the texts that are extended at a time, the one with the highest log-probability for its length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from intaglio.bundle.bundle import Bundle
from intaglio.display.progress import track
from intaglio.runtime.generation.requests.languages import in_language, start_tokens
from intaglio.runtime.generation.requests.prompt_encoder import EncodedPrompt, Prompt, PromptEncoder, PromptLimit
from intaglio.runtime.sampling.beams import BeamOptions, Found, Search
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.encoder_decoder import EncoderDecoderSession, open_session


class BeamText(msgspec.Struct, frozen=True):
    """The text found for a prompt."""

    prompt: str
    text: str  # without special tokens
    tokens: list[int]  # after the start, with the end token if it ended
    score: float  # log-probability, divided by the length to the power of the length penalty
    stopped: str  # "eos", or "length"


def beam_search(
    bundle: str | Path | Bundle,
    prompts: Sequence[Prompt],
    options: BeamOptions | None = None,
    *,
    batch: int = 1,
    target: str = "ort-cpu",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> list[BeamText]:
    """The texts of a decoder or an encoder-decoder for `prompts`, `batch` prompts at a time.

    `target`: as for `open_engine`. The languages: as for `TextGenerator`.

    Raises `UsageError` for a prompt that is empty or too long, and for a language that the model does not know.
    """
    options = options or BeamOptions()
    opened = Bundle.open(bundle)
    encoder, tokenizer = opened.manifest.encoder, PromptEncoder(opened)
    with open_session(opened, target, batch * options.beams, threads) as session:
        source = session.source_limit if isinstance(session, EncoderDecoderSession) else None
        limit = PromptLimit.of(session.limit, source)
        encoded = [in_language(encoder, tokenizer.encode(prompt, limit), source_language) for prompt in prompts]
        start, found = start_tokens(encoder, target_language), list[BeamText]()
        batches = range(0, len(encoded), batch)
        for number in track(batches, "beam search", len(batches)):
            several = encoded[number : number + batch]
            for prompt, search in zip(several, _run(session, several, start, options), strict=True):
                found.append(_text(tokenizer, prompt, search.best, search.prompt, session.decoder.eos_token_ids))
        return found


def _run(
    session: DecoderSession, prompts: Sequence[EncodedPrompt], start: Sequence[int], options: BeamOptions
) -> list[Search]:
    """Search for all of `prompts` at the same time."""
    encoder = session.encoder if isinstance(session, EncoderDecoderSession) else None
    never, ends = (encoder.suppressed_tokens if encoder else ()), session.decoder.eos_token_ids
    searches: list[Search] = []
    new: list[list[int]] = [[] for _ in range(session.batch)]
    for number, prompt in enumerate(prompts):
        begin = list(start or prompt.tokens)
        fitting = replace(options, max_new_tokens=min(options.max_new_tokens, session.limit - len(begin)))
        search = Search(fitting, begin, 1 if encoder else len(begin), ends, number * options.beams, never)
        if isinstance(session, EncoderDecoderSession):
            session.encode_rows(search.rows, prompt.tokens)
        else:
            for row in search.rows:
                session.truncate(row, 0)
        new[search.rows.start] = begin
        searches.append(search)
    logits = session.append(new, [min(len(tokens), 1) for tokens in new])
    for search in searches:  # all beams begin with the same tokens
        first, *others = search.rows
        for row in others:
            session.copy(first, row, session.lengths[first])
            logits[row] = logits[first]
    while True:
        new = [[] for _ in new]
        for search in searches:
            if search.ended:
                continue
            for source, row in search.advance(np.stack([logits[beam.row][-1] for beam in search.beams])):
                session.copy(source, row, session.lengths[source])
            for beam in search.beams if not search.ended else ():
                new[beam.row] = [beam.tokens[-1]]
        if not any(new):
            return searches
        logits = session.append(new, [len(tokens) for tokens in new])


def _text(encoder: PromptEncoder, prompt: EncodedPrompt, found: Found, start: int, ends: Sequence[int]) -> BeamText:
    tokens = found.tokens[start:]
    return BeamText(
        prompt=prompt.text,
        text=encoder.tokenizer.decode(tokens, skip_special_tokens=True),
        tokens=tokens,
        score=float(found.score),
        stopped="eos" if tokens and tokens[-1] in ends else "length",
    )
