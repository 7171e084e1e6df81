"""The plan of a corpus, and the script that makes it with a stand-in for espeak-ng."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from covering import few
from make_speech_corpus import command, make, to_int16, unknown_words
from speech_corpus import recordings
from speech_corpus.planning import CorpusOptions, plan
from speech_corpus.sentences import KINDS, PARTS
from speech_corpus.synthesis import Synthesiser

from intaglio.errors import EngineError, UsageError
from intaglio.training.speech.corpus import Corpus

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


@pytest.mark.parametrize("count", few((4, 5, 6, 7, 11, 100), kept=(4, 7, 100)))
def test_every_split_has_all_kinds_and_the_requested_size(count: int) -> None:
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


@pytest.fixture(autouse=True)
def _no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "SETS", ())  # packages with hundreds of recordings may be installed here


@pytest.mark.usefixtures("tones")
def test_made_corpus_is_read_with_every_sample_and_label(tmp_path: Path) -> None:
    made = make(tmp_path / "corpus", FEW, threads=2)
    planned, corpus = plan(FEW), Corpus(tmp_path / "corpus")
    assert [(each.part, each.kind, each.text, each.voice) for each in corpus.utterances] == [
        (each.part, each.kind, each.text, each.voice) for each in planned
    ]
    synthesiser = Synthesiser()
    for each, utterance in zip(corpus.utterances, planned, strict=True):
        audio = corpus.audio(each)
        assert audio.dtype == np.float32
        assert np.array_equal(audio, to_int16(synthesiser.speak(utterance)).astype(np.float32) / 2**15)
        assert len(audio) == pytest.approx(1600 * len(each.text.split()), abs=2)  # a tone of 0.1 s per word
    assert (made.utterances, made.hours) == (len(planned), pytest.approx(corpus.hours("train")))


@pytest.mark.usefixtures("tones")
def test_recordings_of_people_are_a_part_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "one.wav", np.float32([[0.5, 0.25]] * 800), 16000)
    (tmp_path / "one.txt").write_text("Number 3!")
    own = recordings.RecordingSet("own", "", "", ".", recordings.paired)
    monkeypatch.setattr(recordings, "SETS", (own,))
    make(tmp_path / "corpus", FEW, [tmp_path])
    corpus = Corpus(tmp_path / "corpus")
    (found,) = corpus.part("recordings")
    assert (found.kind, found.text) == ("own", "number three")
    np.testing.assert_allclose(corpus.audio(found), 0.375, atol=2**-15)
    assert len(corpus.part("train")) == FEW.train


def test_failed_corpus_leaves_no_files(tones: Path, tmp_path: Path) -> None:
    program = tones / "espeak-ng"
    program.write_text(program.read_text().replace("loud = 0 if", "loud = 0 if True or"))
    before = set(tmp_path.iterdir())
    with pytest.raises(EngineError, match="no sound"):
        make(tmp_path / "corpus", FEW)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("tones")
def test_command_prints_the_size_or_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["-o", str(tmp_path / "corpus"), "--utterances=12", "--held-out=4"]
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 0 and "20 utterances" in done.output
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2 and "Add --force" in done.output
    assert CliRunner().invoke(command, [*arguments, "--force"]).exit_code == 0
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="espeak-ng: not found on the PATH"):
        make(tmp_path / "other", FEW)


def test_unknown_words_are_missing_from_the_training_split() -> None:
    made = plan(FEW)
    known = {word for each in made if each.part == "train" for word in each.text.split()}
    words = [word for each in made if each.part == "test" for word in each.text.split()]
    assert unknown_words(made) == len([word for word in words if word not in known]) / len(words) > 0


def test_loud_samples_are_clipped() -> None:
    assert to_int16(np.float32([1.5, 1, -1, -1.5, 0.5])).tolist() == [32767, 32767, -32768, -32768, 16384]
