"""Streamed audio: words are independent of piece boundaries, within the stated latency."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from covering import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from local_models import FRAME, RATE, LocalModel, recording

from intaglio.errors import UsageError
from intaglio.runtime.speech.audio_file import Samples
from intaglio.runtime.speech.beam_search import BeamDecoder, CtcBeamOptions
from intaglio.runtime.speech.ctc import Decoder, GreedyDecoder, greedy
from intaglio.runtime.speech.streaming import StreamingTranscriber, StreamOptions
from intaglio.runtime.speech.transcript import Word, transcript
from intaglio.runtime.speech.vocabulary import Vocabulary

LETTERS = Vocabulary(["<blank>", "a", "b", " "], 0, " ")
OPTIONS = StreamOptions(chunk=0.6, left=0.8, right=0.4)
MODEL = LocalModel(reach=4 * FRAME)
DECODERS: dict[str, Callable[[], Decoder]] = {
    "greedy": lambda: GreedyDecoder(0, 4),
    "beam": lambda: BeamDecoder(LETTERS, CtcBeamOptions(width=5)),
}


def streamed(samples: Samples, sizes: list[int], decoder: Decoder, model: LocalModel = MODEL) -> list[Word]:
    """The words of samples that arrive in pieces of these sizes, over and over."""
    transcriber = StreamingTranscriber(model, decoder, LETTERS, RATE, FRAME, OPTIONS)
    words, place, turn = [], 0, 0
    while place < len(samples):
        words += transcriber.feed(samples[place : place + sizes[turn % len(sizes)]]).words
        place += sizes[turn % len(sizes)]
        turn += 1
    return words + transcriber.flush().words


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 1200), st.lists(st.integers(1, 400), min_size=1, max_size=5), st.integers(0, 9))
def test_words_are_independent_of_piece_boundaries(decoder: str, length: int, sizes: list[int], seed: int) -> None:
    samples = recording(length, seed)
    found = streamed(samples, sizes, DECODERS[decoder]())
    assert found == streamed(samples, [length], DECODERS[decoder]())


@pytest.mark.parametrize("more", [0, 1])
@settings(max_examples=examples(25), deadline=None)
@given(st.integers(1, 1200))
def test_streamed_words_equal_offline_words_within_the_context(more: int, length: int) -> None:
    samples, model = recording(length), LocalModel(reach=4 * FRAME, more=more)
    log_probs, _ = model(samples[None], np.array([length]))
    whole = transcript(greedy(log_probs[0], 0), LETTERS, FRAME / RATE, length / RATE)
    found = streamed(samples, [37], GreedyDecoder(0, 4), model)
    assert [word.text for word in found] == [word.text for word in whole.words]
    assert [word.start for word in found] == [word.start for word in whole.words]
    assert all(word.end <= length / RATE for word in found[-1:])


def letters_model(audio: Samples, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A model that reads each frame's token from its first sample: token / 128."""
    frames = -(-lengths // FRAME)
    tokens = np.rint(audio[:, ::FRAME] * 128).astype(int)[:, : int(frames.max())]
    return np.where(np.arange(4) == tokens[:, :, None], -0.1, -9.0), frames


def spoken(text: str) -> Samples:
    """Samples that `letters_model` reads as these tokens, one a frame; "-" is the blank."""
    return np.repeat(np.array(["-ab ".index(letter) for letter in text]) / 128, FRAME).astype(np.float32)


def test_words_become_final_within_the_latency() -> None:
    """Frames of 0.1 s; the word "ab" ends with the space in frame 8."""
    text = "-a-bb---" + " " + "-" * 10 + "b" + "-" * 20
    transcriber = StreamingTranscriber(letters_model, GreedyDecoder(0, 4), LETTERS, RATE, FRAME, OPTIONS)
    assert transcriber.latency == pytest.approx(1.0)
    partial_at = final_at = math.inf
    samples = spoken(text)
    for place in range(len(samples)):
        words, partial = transcriber.feed(samples[place : place + 1])
        if partial == "ab":
            partial_at = min(partial_at, (place + 1) / RATE)
        if words:
            final_at = (place + 1) / RATE
            assert words == [Word("ab", 0.1, 0.5, pytest.approx(math.exp(-0.1), abs=1e-4))]
    assert partial_at <= 0.4 + transcriber.latency
    assert final_at <= 1.0 + transcriber.latency  # the frame after the space shows that it has ended
    assert [word.text for word in transcriber.flush().words] == ["b"]


PIECES = Vocabulary(["<blank>", "▁a", "b", "▁"], 0, "▁")  # no token says that a word has ended


@pytest.mark.parametrize("decoder", [GreedyDecoder(0, 4), BeamDecoder(PIECES, CtcBeamOptions(max_open_frames=20))])
def test_word_before_a_pause_becomes_final(decoder: Decoder) -> None:
    transcriber = StreamingTranscriber(letters_model, decoder, PIECES, RATE, FRAME, OPTIONS)
    speech, pause = spoken("a-b--"), spoken("-" * 150)
    assert transcriber.feed(speech).words == []
    words, silent = [], 0
    while not words and silent < len(pause):
        words = transcriber.feed(pause[silent : silent + FRAME]).words
        silent += FRAME
    assert [word.text for word in words] == ["ab"]
    assert transcriber.feed(pause) == ([], "")
    assert transcriber.flush() == ([], "")


def test_word_continues_after_a_short_pause() -> None:
    transcriber = StreamingTranscriber(letters_model, GreedyDecoder(0, 4), PIECES, RATE, FRAME, OPTIONS)
    words = transcriber.feed(spoken("a" + "-" * 9 + "b" + "-" * 40)).words
    assert [word.text for word in words] == ["ab"]


def test_last_word_is_returned_at_the_end() -> None:
    transcriber = StreamingTranscriber(letters_model, GreedyDecoder(0, 4), LETTERS, RATE, FRAME, OPTIONS)
    assert transcriber.feed(spoken("a-b a")).words == []
    update = transcriber.flush()
    assert [(word.text, word.start, word.end) for word in update.words] == [("ab", 0.0, 0.3), ("a", 0.4, 0.5)]
    assert update.partial == ""


def test_empty_audio_has_no_words() -> None:
    for make in DECODERS.values():
        transcriber = StreamingTranscriber(MODEL, make(), LETTERS, RATE, FRAME, OPTIONS)
        assert transcriber.flush() == ([], "")


def test_final_words_and_partial_text_are_the_text_so_far() -> None:
    """Nothing is repeated or lost between the two."""
    text = "a-b- b-a-a- -b-a " * 5
    transcriber = StreamingTranscriber(letters_model, GreedyDecoder(0, 4), LETTERS, RATE, FRAME, OPTIONS)
    words, samples = [], spoken(text)
    for end in range(FRAME, len(samples) + 1, FRAME):
        update = transcriber.feed(samples[end - FRAME : end])
        words += [word.text for word in update.words]
        computed = max(0, (end - 1) // FRAME - 4) // 6 * 6  # frames that the windows so far have counted
        tokens = ["-ab ".index(letter) for letter in text[:computed] if letter != "-"]
        assert " ".join([*words, *update.partial.split()]) == LETTERS.text(tokens)
    words += [word.text for word in transcriber.flush().words]
    assert words == ["ab", "baa", "ba"] * 5


@pytest.mark.parametrize(
    "wrong", [{"chunk": 0.0}, {"left": -1.0}, {"right": math.nan}, {"chunk": math.inf}, {"pause": 0.0}]
)
def test_invalid_options_raise_usage_error(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"expected (a chunk )?above 0"):
        StreamOptions(**wrong)
