"""What is spoken: the sentences of every part, by whom and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intaglio import UsageError
from speech_corpus.sentences import KINDS, Kind, Part, sentences_in
from speech_corpus.voices import PITCH, VOICES, WORDS_PER_MINUTE

SHARES: dict[Kind, float] = {"digits": 0.1, "numbers": 0.06, "commands": 0.14}  # of the utterances; the rest is prose


@dataclass(frozen=True)
class Utterance:
    """A sentence, who speaks it and how."""

    part: Part
    kind: Kind
    text: str  # lower-case words separated by single spaces
    voice: str  # as espeak-ng takes it, "en-us+f3"
    words_per_minute: int
    pitch: int  # 0 to 99


@dataclass(frozen=True)
class CorpusOptions:
    """How many utterances are spoken. About 1,450 make an hour."""

    train: int = 28000
    validation: int = 400
    test: int = 400
    seed: int = 0

    def counts(self) -> dict[Part, int]:
        """The number of utterances of each part."""
        return {"train": self.train, "validation": self.validation, "test": self.test}

    def __post_init__(self) -> None:
        for part, count in self.counts().items():
            if count < len(KINDS):
                raise UsageError(f"{part} utterances {count}: expected at least {len(KINDS)}.")


def plan(options: CorpusOptions) -> list[Utterance]:
    """The texts to speak: the same for the same options. Parts have neither sentences nor voices in common.

    A part does not depend on the sizes of the others, so that two trainings can be compared.
    """
    return [
        utterance
        for number, (part, count) in enumerate(options.counts().items())
        for utterance in _plan_part(part, count, np.random.default_rng([options.seed, number]))
    ]


def _plan_part(part: Part, count: int, random: np.random.Generator) -> list[Utterance]:
    """`count` utterances of a part, their kinds as `SHARES` says; a sentence repeats once all were spoken."""
    texts: list[tuple[Kind, str]] = []
    wanted = {kind: max(1, round(count * share)) for kind, share in SHARES.items()}
    for kind in KINDS:
        found = sentences_in(part, kind)
        number = wanted[kind] if kind in wanted else count - sum(wanted.values())
        rounds = [random.permutation(found) for _ in range(-(-number // len(found)))]
        texts += [(kind, str(text)) for text in np.concatenate(rounds)[:number]]
    order = random.permutation(len(texts))
    return [
        Utterance(
            part,
            kind,
            text,
            voice=VOICES[part].draw(random),
            words_per_minute=int(random.integers(*WORDS_PER_MINUTE, endpoint=True)),
            pitch=int(random.integers(*PITCH, endpoint=True)),
        )
        for kind, text in (texts[index] for index in order)
    ]
