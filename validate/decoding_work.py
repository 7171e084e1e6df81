"""Operations and bytes that decoding takes, by the passes that were run (thesis, appendix C.5 and figure C.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import cache

import msgspec

from intaglio.bundle import Bundle
from intaglio.drafts import draft_axes
from intaglio.model_file import load
from intaglio.runtime.generation.generated import Generated
from intaglio.runtime.sessions.step import exit_outputs, whole_outputs
from intaglio.runtime.strategies.contract import Author, Calls, Tokens
from intaglio.validate.work import Work, work

Counted = Callable[[Generated], tuple[float, float]]  # operations and bytes of what a part of a model did for a text


class DecodingWork(msgspec.Struct):
    """What a token of the texts took, both models together, the prompts' reading included."""

    operations: float
    bytes: float
    intensity: float  # operations for each byte


class ComparedWork(msgspec.Struct):
    """What texts took, and what the same texts take that the large model writes alone."""

    run: DecodingWork
    alone: DecodingWork


def compared_work(large: Bundle, small: Bundle | None) -> Callable[[Sequence[Generated]], ComparedWork]:
    """As `decoding_work`, of the texts as they were written and as the large model alone would write them."""
    count = decoding_work(large, small)

    def alone(result: Generated) -> Generated:
        passes = len(result.tokens)
        before = 1 if large.manifest.encoder else result.prompt_tokens  # the first pass reads it
        calls, processed = Calls(large=passes), Tokens(large=before + passes - 1)
        return msgspec.structs.replace(result, calls=calls, processed=processed, origins=0)

    return lambda results: ComparedWork(count(results), count([alone(result) for result in results]))


def decoding_work(large: Bundle, small: Bundle | None) -> Callable[[Sequence[Generated]], DecodingWork]:
    """What counts the work of texts that were written by `large`, and drafted by `small`, or else its early exit.

    A pass reads all weights, however many tokens go through it: that is what drafting saves. Operations grow with the
    tokens, and are more than without drafts by those of the small model and of tokens that were rolled back.
    """
    decoder = large.manifest.decoder
    assert decoder is not None, "only decoders write texts"
    parts = [*_encoder(large, "large"), _decoder(large, "large", whole_outputs(decoder))]
    if small is not None:
        assert small.manifest.decoder is not None, "only decoders draft"
        parts += [*_encoder(small, "small"), _decoder(small, "small", whole_outputs(small.manifest.decoder))]
    elif decoder.exit_layer:
        parts.append(_decoder(large, "small", exit_outputs(decoder)))

    def count(results: Sequence[Generated]) -> DecodingWork:
        found = [part(result) for part in parts for result in results]
        operations, moved = (sum(each) for each in zip(*found, strict=True))
        tokens = sum(len(result.tokens) for result in results)
        return DecodingWork(operations / tokens, moved / tokens, operations / moved)

    return count


def _decoder(bundle: Bundle, author: Author, outputs: Collection[str] | None) -> Counted:
    """The passes of a decoder, all of the same length: what they take is linear in each of the lengths."""
    model = load(bundle.model_path, mapped=True)
    drafts = bundle.manifest.decoder.drafts if bundle.manifest.decoder else 0

    def at_lengths(tokens: int, capacity: int, source: int, drafting: int) -> Work:
        axes = {"batch": 1, "tokens": tokens, "positions_wanted": tokens, "capacity": capacity, "source": source}
        return work(model, axes | draft_axes(drafts, tokens, tokens, drafting), outputs)

    corners = {corner: at_lengths(*corner) for corner in itertools.product((1, 2), repeat=4)}

    def counted(result: Generated) -> tuple[float, float]:
        calls = getattr(result.calls, author)
        if not calls:
            return 0.0, 0.0
        read = result.prompt_tokens
        written = len(result.tokens) / 2  # in the mean of the passes
        length = written if bundle.manifest.encoder else read + written
        # A draft model that has drafts of its own makes them once a pass, though nobody asks for them.
        origins = result.origins / calls if author == "large" else 1.0
        lengths = getattr(result.processed, author) / calls, length, read, origins
        operations = moved = 0.0
        for corner, found in corners.items():
            at = zip(corner, lengths, strict=True)
            part = math.prod(value - 1 if place == 2 else 2 - value for place, value in at)
            operations += part * found.operations
            moved += part * found.bytes
        return calls * operations, calls * moved

    return counted


def _encoder(bundle: Bundle, author: Author) -> list[Counted]:
    """The reading of the source, where there is an encoder."""
    if bundle.manifest.encoder is None:
        return []
    model = load(bundle.path / bundle.manifest.encoder.file, mapped=True)
    at = cache(lambda source: work(model, {"batch": 1, "source": source}))

    def counted(result: Generated) -> tuple[float, float]:
        if not getattr(result.calls, author):
            return 0.0, 0.0
        found = at(result.prompt_tokens)
        return found.operations, found.bytes

    return [counted]
