from __future__ import annotations

import re

import pytest
from speech_corpus.prose import FEWEST, MOST
from speech_corpus.sentences import HELD_OUT, KINDS, PARTS, Kind, part_of, prose, sentences

WORDS = re.compile(r"[a-z]+('[a-z]+)*( [a-z]+('[a-z]+)*)*")


@pytest.mark.parametrize("kind", KINDS)
def test_sentences_are_unique_and_contain_only_letters(kind: Kind) -> None:
    found = sentences(kind)
    assert len(found) == len(set(found)) > 300
    assert all(WORDS.fullmatch(sentence) for sentence in found)
    assert sentences(kind) == found


def test_prose_excludes_very_short_and_very_long_sentences() -> None:
    assert {len(sentence.split()) for sentence in prose()} == set(range(FEWEST, MOST + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_in_every_split_in_proportion(kind: Kind) -> None:
    found = [part_of(sentence) for sentence in sentences(kind) if " " in sentence]
    for part in PARTS[1:]:
        assert found.count(part) / len(found) == pytest.approx(HELD_OUT, abs=0.035)


def test_single_words_are_only_in_the_training_split() -> None:
    assert {part_of(word) for word in ("yes", "no", "seven", "stop", "ten", "save")} == {"train"}


def test_split_is_reproducible() -> None:
    parts = {"open the file": "train", "close the message": "validation", "open the folder": "test"}
    assert {sentence: part_of(sentence) for sentence in parts} == parts


def test_most_held_out_words_are_in_the_training_split() -> None:
    split = {part: [s for kind in KINDS for s in sentences(kind) if part_of(s) == part] for part in PARTS}
    known = {word for sentence in split["train"] for word in sentence.split()}
    for part in PARTS[1:]:
        words = [word for sentence in split[part] for word in sentence.split()]
        assert sum(word not in known for word in words) / len(words) < 0.05
