from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tone_corpora import SIZES, write_corpus

from intaglio.errors import UsageError
from intaglio.training.speech.corpus import LIST, NEEDED, Corpus


def test_folder_and_list_are_the_same_corpus(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    corpus = Corpus(folder)
    assert corpus.utterances == Corpus(folder / LIST).utterances
    assert {part: len(corpus.part(part)) for part in NEEDED} == SIZES
    seconds = 0.0
    for each in corpus.part("train"):
        audio = corpus.audio(each)
        assert audio.dtype == np.float32 and len(audio) == 1600 * len(each.text.split())
        assert each.seconds == len(audio) / 16000
        seconds += each.seconds
    assert corpus.hours("train") == pytest.approx(seconds / 3600)


def test_texts_become_words_and_the_part_defaults_to_train(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    line = json.dumps({"audio_filepath": "recordings/test-0.flac", "text": "Chapter 21: It's here.", "duration": 0.5})
    with (folder / LIST).open("a") as file:
        file.write(line + "\n")
    added = Corpus(folder).utterances[-1]
    assert (added.part, added.kind, added.voice, added.text) == ("train", "", "", "chapter twenty one it's here")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"validation"', '"train"', r'no line has "part": "validation"\.'),
        ('"test"', '"dev"', r"recording 13: part 'dev', expected one of train, validation, test, recordings\."),
        ('"the length of the list"', '"..."', r"recording 1: text '\.\.\.' has no words\. Write .* train-0\.flac"),
        ("train-1.flac", "gone.flac", r"gone\.flac: cannot be read"),
        ("recordings/train-1", "../train-1", r"expected one that stays inside .* Put the list above its recordings\."),
        ('"kind": "prose"', '"kind": 3', "Expected `str`, got `int`"),
    ],
)
def test_damaged_corpus_is_an_error_that_names_the_recording(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_corpus(tmp_path / "corpus") / LIST
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UsageError, match=message) as raised:
        Corpus(path)
    assert "\n" not in str(raised.value)


def test_truncated_recording_is_an_error(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    corpus, path = Corpus(folder), folder / "recordings/train-0.flac"
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(UsageError, match=r"train-0\.flac"):
        corpus.audio(corpus.utterances[0])


def test_folder_without_a_list_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"utterances\.jsonl"):
        Corpus(tmp_path)
