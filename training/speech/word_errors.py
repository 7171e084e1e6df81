"""Word error rates of transcripts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from intaglio import extras


class WordErrors(msgspec.Struct, frozen=True):
    """The errors in some transcripts; the rate is of all their words together, and can exceed 100."""

    wer: float  # percent
    utterances: int
    words: int  # in the references
    substitutions: int
    deletions: int
    insertions: int


def word_errors(references: Sequence[str], transcripts: Sequence[str]) -> WordErrors:
    """Compare `transcripts` with the `references`, none of which is empty."""
    found = extras.load("jiwer").process_words(list(references), list(transcripts))
    words = found.hits + found.substitutions + found.deletions
    errors = (found.substitutions, found.deletions, found.insertions)
    return WordErrors(100 * sum(errors) / words, len(references), words, *errors)


def by_group(groups: Sequence[str], references: Sequence[str], transcripts: Sequence[str]) -> dict[str, WordErrors]:
    """The errors of each group, by name; `groups`: the group of each transcript, "" for none."""
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        if group:
            places.setdefault(group, []).append(place)
    return {
        group: word_errors(
            [references[place] for place in places[group]], [transcripts[place] for place in places[group]]
        )
        for group in sorted(places)
    }
