"""Features of utterances: clean, or mixed with speed, rooms and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from intaglio import interrupts
from intaglio.display.progress import track
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.front_end import LogMel
from intaglio.training.speech.batches import Example, Features
from intaglio.training.speech.corpus import Corpus, Utterance
from intaglio.training.speech.mixing import Mixing, mix
from intaglio.training.speech.tokens import Tokens, characters

CLEAN = 1 / 3  # of the examples to train on: not mixed
TALKERS = 4  # other utterances that babble is made of


class Mixed(NamedTuple):
    """How a part of a corpus is mixed: the seed of this variant, and the share that stays clean."""

    seed: Sequence[int]
    clean: float = 0.0


class FeatureReader:
    """The features of a corpus's utterances, [frames, bands] in float16, normalised over each utterance."""

    def __init__(self, corpus: Corpus, front_end: FrontEnd, tokens: Tokens):
        self._corpus = corpus
        self._log_mel = LogMel(front_end).eval()
        self._tokens, self._letters = tokens, characters()

    def examples(self, utterances: Sequence[Utterance], description: str, mixed: Mixed | None = None) -> list[Example]:
        """An example of each utterance; `mixed`: mixed, each with a generator of its own."""
        made = []
        for index, utterance in enumerate(track(utterances, description, total=len(utterances))):
            with interrupts.deferred():
                audio = self._corpus.audio(utterance)
                if mixed is not None:
                    audio = self._mixed(audio, utterances, np.random.default_rng([*mixed.seed, index]), mixed.clean)
                text = utterance.text
                made.append(Example(self.features(audio), self._tokens.encode(text), self._letters.encode(text)))
        return made

    @torch.inference_mode()
    def features(self, audio: npt.NDArray[np.float32]) -> Features:
        """The features of samples at 16 kHz."""
        samples = torch.from_numpy(np.ascontiguousarray(audio, np.float32))[None]
        features, _ = self._log_mel(samples, torch.tensor([len(audio)]))
        taken: Features = features[0].half().numpy()
        return taken

    def _mixed(
        self, audio: npt.NDArray[np.float32], utterances: Sequence[Utterance], random: np.random.Generator, clean: float
    ) -> npt.NDArray[np.float32]:
        if random.random() < clean:
            return audio
        others = random.integers(len(utterances), size=TALKERS)
        return mix(audio, random, Mixing(), [self._corpus.audio(utterances[other]) for other in others])
