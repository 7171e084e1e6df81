"""Operations and bytes that decoding takes, by the passes that were run (thesis, appendix C.5 and figure C.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from intaglio.bundle import Bundle
from intaglio.model_file import load
from intaglio.runtime.text_run import Generated
from intaglio.validate.work import work


class DecodingWork(msgspec.Struct):
    """What a token of the texts took, both models together, the prompts' reading included."""

    operations: float
    bytes: float
    intensity: float  # operations for each byte


def decoding_work(large: Bundle, small: Bundle | None) -> Callable[[Sequence[Generated]], DecodingWork]:
    """What counts the work of texts that were written by two bundles, or by one.

    A pass reads all weights, however many tokens go through it: that is what drafting saves. Operations grow with the
    tokens, and are more than without drafts by those of the small model and of tokens that were rolled back.
    """
    of_large = _by_pass(large)
    of_small = _by_pass(small) if small else None

    def count(results: Sequence[Generated]) -> DecodingWork:
        operations = moved = 0.0
        for result in results:
            length = result.prompt_tokens + len(result.tokens) / 2  # of the text, in the mean
            for passes, calls, tokens in (
                (of_large, result.calls.large, result.processed.large),
                (of_small, result.calls.small, result.processed.small),
            ):
                if passes and calls:
                    found = passes(tokens / calls, length)
                    operations += calls * found[0]
                    moved += calls * found[1]
        tokens = sum(len(result.tokens) for result in results)
        return DecodingWork(operations / tokens, moved / tokens, operations / moved)

    return count


def _by_pass(bundle: Bundle) -> Callable[[float, float], tuple[float, float]]:
    """Operations and bytes of a pass of so many tokens over texts of such a length: bilinear in the two."""
    model = load(bundle.model_path, mapped=True)
    corners = [
        work(model, {"batch": 1, "tokens": tokens, "capacity": length, "positions_wanted": tokens})
        for tokens, length in ((1, 1), (2, 1), (1, 2), (2, 2))
    ]

    def passed(tokens: float, length: float) -> tuple[float, float]:
        x, y = tokens - 1, length - 1
        parts = ((1 - x) * (1 - y), x * (1 - y), (1 - x) * y, x * y)
        operations = sum(part * corner.operations for part, corner in zip(parts, corners, strict=True))
        moved = sum(part * corner.bytes for part, corner in zip(parts, corners, strict=True))
        return operations, moved

    return passed
