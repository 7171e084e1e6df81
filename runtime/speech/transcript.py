"""The transcript of a recording: the text, its tokens and words, with times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from intaglio.runtime.speech.ctc import Token
from intaglio.runtime.speech.vocabulary import Vocabulary


class TimedToken(msgspec.Struct, frozen=True):
    """A token of the transcript, as the vocabulary writes it."""

    text: str
    start: float  # seconds
    end: float  # seconds
    confidence: float  # the highest probability of its frames


class Word(msgspec.Struct, frozen=True):
    """A word of the transcript.

    Its confidence is the geometric mean of its tokens' confidences, each the highest probability of the token's frames.
    """

    text: str
    start: float  # seconds
    end: float  # seconds
    confidence: float  # 0 to 1


class Transcript(msgspec.Struct, frozen=True):
    """The transcript of a recording."""

    text: str  # the words, joined by single spaces
    tokens: list[TimedToken]
    words: list[Word]
    seconds: float  # of audio


def real_time_factor(work: float, seconds: float) -> float:
    """Seconds of work per second of audio; 0 for a recording of a few samples, which lasts 0.000 seconds."""
    return work / seconds if seconds else 0.0


class WordReader:
    """Joins tokens to words as they arrive.

    Frame i of the model lasts from i to i + 1 times `frame_seconds`; no time lies beyond `seconds`, the audio's length.
    """

    def __init__(self, vocabulary: Vocabulary, frame_seconds: float, seconds: float = math.inf):
        self._vocabulary = vocabulary
        self._frame_seconds = frame_seconds
        self.seconds = seconds
        self._text = ""  # of the word that is not complete
        self._tokens: list[Token] = []

    def add(self, tokens: Sequence[Token]) -> list[Word]:
        """Take the next tokens, and return the words that are complete: a mark came after them."""
        words = []
        for token in tokens:
            for number, piece in enumerate(self._vocabulary.pieces[token.token_id]):
                if number:
                    words += self.close()
                if piece:
                    self._text += piece
                    self._tokens.append(token)
        return words

    def close(self) -> list[Word]:
        """Complete the last word, and return it if there is one."""
        if not self._tokens:
            return []
        tokens, self._tokens = self._tokens, []
        text, self._text = self._text, ""
        confidence = math.exp(fmean(token.log_prob for token in tokens))
        return [Word(text, self.time(tokens[0].first), self.time(tokens[-1].last + 1), round(confidence, 4))]

    def time(self, frame: int) -> float:
        """The seconds at which a frame begins, to the millisecond."""
        return round(min(frame * self._frame_seconds, self.seconds), 3)

    def preview(self, tokens: Sequence[Token]) -> str:
        """The text of the incomplete word, continued with these tokens."""
        other = WordReader(self._vocabulary, self._frame_seconds)
        other._text, other._tokens = self._text, list(self._tokens)
        return " ".join(word.text for word in other.add(tokens) + other.close())


def transcript(tokens: Sequence[Token], vocabulary: Vocabulary, frame_seconds: float, seconds: float) -> Transcript:
    """The transcript of `seconds` of audio, from all of its tokens."""
    reader = WordReader(vocabulary, frame_seconds, seconds)
    words = reader.add(tokens) + reader.close()
    timed = [
        TimedToken(
            vocabulary.tokens[token.token_id],
            reader.time(token.first),
            reader.time(token.last + 1),
            round(math.exp(token.log_prob), 4),
        )
        for token in tokens
    ]
    return Transcript(" ".join(word.text for word in words), timed, words, round(seconds, 3))
