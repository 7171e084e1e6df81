from __future__ import annotations

import shutil

import numpy as np
import pytest
from speech_corpus.planning import Utterance
from speech_corpus.synthesis import SAMPLE_RATE, Synthesiser
from speech_corpus.voices import VOICES

from intaglio.errors import EngineError, UsageError


def utterance(text: str, voice: str = "en-us", words_per_minute: int = 170, pitch: int = 50) -> Utterance:
    return Utterance("train", "prose", text, voice, words_per_minute, pitch)


@pytest.fixture
def espeak() -> Synthesiser:
    if shutil.which("espeak-ng") is None:
        pytest.skip("no espeak-ng")
    return Synthesiser()


def test_missing_program_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"espeak-ng: not found on the PATH.*apt install espeak-ng"):
        Synthesiser()


@pytest.mark.usefixtures("tones")
def test_speech_is_resampled_despite_wrong_header_lengths() -> None:
    samples = Synthesiser().speak(utterance("three words here"))
    assert samples.dtype == np.float32
    assert len(samples) == pytest.approx(0.3 * SAMPLE_RATE, abs=2)
    assert np.abs(samples).max() == pytest.approx(8000 / 2**15, rel=0.02)
    frequency = np.abs(np.fft.rfft(samples)).argmax() * SAMPLE_RATE / len(samples)
    assert frequency == pytest.approx(22050 / 20 / (2 * np.pi), abs=SAMPLE_RATE / len(samples))


@pytest.mark.usefixtures("tones")
def test_failing_or_silent_program_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"espeak-ng: exit code 1: Error: the sound is broken\."):
        Synthesiser().speak(utterance("fail"))
    with pytest.raises(EngineError, match="no sound for 'silence' with the voice en-us"):
        Synthesiser().speak(utterance("silence"))


@pytest.mark.usefixtures("tones")
@pytest.mark.parametrize("voice", ["en-us+nobody", "xx-yy", "xx-yy+f1"])
def test_missing_voice_is_not_replaced(voice: str) -> None:
    with pytest.raises(UsageError, match="has no voice"):
        Synthesiser().check([voice, "en-us+f1"])


def test_every_voice_is_installed_with_the_program(espeak: Synthesiser) -> None:
    for voices in VOICES.values():
        espeak.check(voices.names())


def test_voice_speed_and_pitch_change_the_speech(espeak: Synthesiser) -> None:
    text = "the length of the list"
    plain, woman, quick, high = (
        espeak.speak(each)
        for each in (
            utterance(text),
            utterance(text, "en-us+f3"),
            utterance(text, words_per_minute=200),
            utterance(text, pitch=70),
        )
    )
    assert SAMPLE_RATE < len(plain) < 2.5 * SAMPLE_RATE
    assert len(quick) < 0.95 * len(plain)
    for other in (woman, high):
        shorter = min(len(plain), len(other))
        assert np.corrcoef(plain[:shorter], other[:shorter])[0, 1] < 0.9
    assert np.array_equal(espeak.speak(utterance(text)), plain)


def test_word_that_looks_like_an_option_is_spoken(espeak: Synthesiser) -> None:
    assert len(espeak.speak(utterance("--version"))) > 0.2 * SAMPLE_RATE


def test_voices_are_not_clipped(espeak: Synthesiser) -> None:
    for voice in ("en-us+zac", "en-029+pedro", "en-us"):
        assert np.abs(espeak.speak(utterance("go up and stop now", voice))).max() < 0.99
