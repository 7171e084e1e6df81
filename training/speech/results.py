"""What training a speech recogniser measures."""

from __future__ import annotations

from typing import Any

import msgspec

from intaglio.training.speech.word_errors import WordErrors

RESULTS = "training.json"  # in the checkpoint: a `TrainedSpeech`


class Evaluation(msgspec.Struct, frozen=True):
    """How far a training run is."""

    step: int
    seconds: float  # of training and evaluating until here
    loss: float  # nats a token, of the latest steps
    learning_rate: float
    wer: float  # percent, of the validation part


class TestErrors(msgspec.Struct):
    """Word errors on held-out speech."""

    __test__ = False  # pytest takes classes of this name for tests

    test: WordErrors  # the test part
    mixed: WordErrors  # the same at other speeds, in rooms and with noise
    kinds: dict[str, WordErrors]  # of `test`, by the kind of sentence that the corpus states
    voices: dict[str, WordErrors]  # of `test`, by voice
    recordings: dict[str, WordErrors]  # of people, by the name of the set


class TrainedSpeech(msgspec.Struct):
    """The result of `train_speech`."""

    checkpoint: str
    options: dict[str, Any]  # those of `SpeechTraining`
    utterances: dict[str, int]  # of each part of the corpus
    hours: float  # of the speech to train on, before it is mixed
    tokens: int  # of the vocabulary, the blank among them
    parameters: int
    steps: int
    epochs: float
    evaluations: list[Evaluation]
    kept_steps: list[int]  # whose weights were kept, as their mean
    validation_wer: float  # percent, of the weights kept
    errors: TestErrors
    seconds: float
