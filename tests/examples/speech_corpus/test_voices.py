from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
from speech_corpus.sentences import PARTS
from speech_corpus.voices import VOICES


def test_no_voice_variant_is_in_two_splits() -> None:
    for one, other in combinations(PARTS, 2):
        assert not {*VOICES[one].men, *VOICES[one].women} & {*VOICES[other].men, *VOICES[other].women}


def test_every_split_has_men_and_women_of_both_english_accents() -> None:
    for voices in VOICES.values():
        assert voices.men and voices.women
        assert {"en-us", "en-gb"} <= set(voices.accents)


def test_held_out_accent_is_only_in_the_test_split() -> None:
    assert set(VOICES["test"].accents) - {*VOICES["train"].accents, *VOICES["validation"].accents}


def test_accent_without_variant_is_named_without_plus() -> None:
    names = VOICES["train"].names()
    assert "en-us" in names and "en-us+f3" in names
    assert not any(name.endswith("+") for name in names)
    assert len(names) == len(set(names))


def test_accents_are_sampled_by_their_weights() -> None:
    voices = VOICES["train"]
    random = np.random.default_rng(0)
    drawn = [voices.draw(random) for _ in range(4000)]
    assert set(drawn) <= set(voices.names())
    accents = Counter(each.split("+")[0] for each in drawn)
    total = sum(voices.accents.values())
    for accent, weight in voices.accents.items():
        assert abs(accents[accent] / 4000 - weight / total) < 0.03, accent
