from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import EngineError, UsageError
from intaglio.training.speech import corpus as module
from intaglio.training.speech.corpus import INDEX, SAMPLES, Corpus, CorpusOptions, Utterance, plan, synthesise, to_int16
from intaglio.training.speech.sentences import KINDS, PARTS

FEW = CorpusOptions(train=12, validation=4, test=5)


def test_splits_share_no_sentences_or_voices() -> None:
    made = plan(CorpusOptions(600, 100, 100))
    texts = [{each.text for each in made if each.part == part} for part in PARTS]
    voices = [{each.voice for each in made if each.part == part} for part in PARTS]
    for sets in (texts, voices):
        assert all(sets)
        assert len(set.union(*sets)) == sum(map(len, sets))


def test_plan_depends_on_the_seed_alone() -> None:
    assert plan(FEW) == plan(FEW)
    held_out = [each for each in plan(CorpusOptions(600, FEW.validation, FEW.test)) if each.part != "train"]
    assert held_out == [each for each in plan(FEW) if each.part != "train"]
    assert plan(FEW) != plan(CorpusOptions(12, 4, 5, seed=1))


def test_every_split_has_all_kinds_and_the_requested_size() -> None:
    for count in (4, 5, 6, 7, 11, 100):
        made = plan(CorpusOptions(count, count, count))
        for part in PARTS:
            kinds = [each.kind for each in made if each.part == part]
            assert len(kinds) == count
            assert set(kinds) == set(KINDS)


def test_sentences_are_repeated_evenly_if_there_are_too_few() -> None:
    numbers = [each.text for each in plan(CorpusOptions(4, 4, 20_000)) if (each.part, each.kind) == ("test", "numbers")]
    counts = [numbers.count(text) for text in set(numbers)]
    assert max(counts) - min(counts) <= 1 < min(counts)


@pytest.mark.parametrize("options", [{"train": 0}, {"validation": 3}, {"test": -1}])
def test_too_few_utterances_are_an_error(options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"utterances -?\d: expected at least 4"):
        CorpusOptions(**options)


@pytest.mark.usefixtures("tones")
def test_corpus_round_trips(tmp_path: Path) -> None:
    made = synthesise(FEW, tmp_path / "corpora", threads=2)
    planned = plan(FEW)
    assert [Utterance(*(getattr(each, name) for name in Utterance.__struct_fields__)) for each in made.utterances] == (
        planned
    )
    assert len(made.part("train")) + len(made.part("validation")) + len(made.part("test")) == len(planned)
    for each in made.utterances:
        audio = made.audio(each)
        assert audio.dtype == np.float32
        assert (
            len(audio) == each.samples == pytest.approx(1600 * len(each.text.split()), abs=2)
        )  # a tone of 0.1 s per word
        assert np.abs(audio).max() == pytest.approx(8000 / 2**15, rel=0.03)
    assert made.hours("train") == pytest.approx(sum(u.samples for u in made.part("train")) / 16000 / 3600)


@pytest.mark.usefixtures("tones")
def test_corpus_is_synthesised_once_per_set_of_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthesise(FEW, tmp_path / "corpora")
    changed = (first.path / SAMPLES).stat().st_mtime_ns
    assert synthesise(FEW, tmp_path / "corpora").path == first.path
    assert (first.path / SAMPLES).stat().st_mtime_ns == changed
    assert synthesise(CorpusOptions(12, 4, 5, seed=1), tmp_path / "corpora").path != first.path
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    assert synthesise(FEW, tmp_path / "corpora").path != first.path


def test_failed_corpus_leaves_no_files(tones: Path, tmp_path: Path) -> None:
    program = tones / "espeak-ng"
    program.write_text(program.read_text().replace("loud = 0 if", "loud = 0 if True or"))
    with pytest.raises(EngineError, match="no sound"):
        synthesise(FEW, tmp_path / "corpora")
    assert list((tmp_path / "corpora").iterdir()) == []


@pytest.mark.usefixtures("tones")
def test_damaged_corpus_is_an_error(tmp_path: Path) -> None:
    path = synthesise(FEW, tmp_path / "corpora").path
    samples, index = (path / SAMPLES).read_bytes(), (path / INDEX).read_bytes()
    (path / SAMPLES).write_bytes(samples[:-2])
    with pytest.raises(UsageError, match=r"expected \d+\. Delete it"):
        Corpus(path)
    (path / SAMPLES).write_bytes(samples)
    (path / INDEX).write_bytes(index[:-5])
    with pytest.raises(UsageError, match="cannot be read"):
        Corpus(path)
    with pytest.raises(UsageError, match="cannot be read"):
        Corpus(tmp_path)


@pytest.mark.usefixtures("tones")
def test_unknown_words_are_missing_from_the_training_split(tmp_path: Path) -> None:
    made = synthesise(FEW, tmp_path / "corpora")
    assert made.unknown_words("train") == 0
    known = {word for each in made.part("train") for word in each.text.split()}
    words = [word for each in made.part("test") for word in each.text.split()]
    assert made.unknown_words("test") == len([word for word in words if word not in known]) / len(words) > 0


def test_loud_samples_are_clipped() -> None:
    assert to_int16(np.float32([1.5, 1, -1, -1.5, 0.5])).tolist() == [32767, 32767, -32768, -32768, 16384]
