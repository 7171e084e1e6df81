"""A training run: steps, evaluations on the validation part while it trains, and the weights that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from intaglio import interrupts
from intaglio.display.progress import fraction
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Example, batches
from intaglio.training.speech.learning_rate import LearningRate
from intaglio.training.speech.results import Evaluation
from intaglio.training.speech.spec_augment import SpecAugment
from intaglio.training.speech.speech_trainer import SpeechTrainer, greedy_tokens
from intaglio.training.speech.tokens import Tokens
from intaglio.training.speech.training_options import SpeechTraining
from intaglio.training.speech.word_errors import word_errors

State = dict[str, Tensor]
SMOOTHED = 50  # steps over which a reported loss is averaged


class TrainingRun:
    """Trains `network`; its weights are the best ones after `train`.

    `examples(epoch)`: the training examples of an epoch, counted from 0; `validation`: examples and their reference
    transcripts.
    """

    def __init__(
        self,
        network: SpeechNetwork,
        tokens: Tokens,
        options: SpeechTraining,
        examples: Callable[[int], Sequence[Example]],
        validation: tuple[Sequence[Example], Sequence[str]],
    ):
        self._network, self._tokens, self._options = network, tokens, options
        self._examples, self._validation = examples, validation
        rate = LearningRate(options.learning_rate, options.warm_up, options.hold, cool_down=options.cool_down)
        augment = SpecAugment(options.band_masks, options.band_width, options.time_masks)
        self._trainer = SpeechTrainer(
            network,
            rate,
            augment,
            options.seed,
            options.optimizer,
            options.mask_after,
            options.letters,
            options.letters_after,
        )
        self._best: list[tuple[float, int, State]] = []  # the rate, the step and the weights; best first
        self.epochs = 0
        self.evaluations: list[Evaluation] = []

    def train(self, report: Callable[[Evaluation], None] | None = None) -> tuple[float, list[int]]:
        """Train, calling `report` after each evaluation; return the rate of the weights kept, and their steps.

        These are the weights of the best evaluation, or the mean of several if its rate is no worse. Ctrl-C ends the
        training and keeps them too, but before the first evaluation it ends everything. Raises `GraphError` if training
        diverges.
        """
        with interrupts.answered():
            self._steps(report)
        if not self.evaluations:  # the last step is always followed by one
            raise interrupts.Interrupted
        return self._keep()

    def transcripts(self, examples: Sequence[Example]) -> list[str]:
        """The network's transcripts, decoded greedily; training continues afterwards."""
        found = greedy_tokens(self._network, examples, 2 * self._options.batch_frames)
        self._network.train()
        return [self._tokens.vocabulary.text(tokens) for tokens in found]

    def _steps(self, report: Callable[[Evaluation], None] | None) -> None:
        """All steps and evaluations, as far as the time reaches."""
        options = self._options
        began = time.monotonic()
        limit = None if options.minutes is None else 60 * options.minutes
        progress = 0.0
        losses: list[float] = []
        stream = self._batches()
        with fraction("training") as show:
            for step in range(1, options.steps + 1):
                with interrupts.deferred():
                    done = self._trainer.step(next(stream), progress)
                losses = [*losses[-SMOOTHED + 1 :], done.loss]
                seconds = time.monotonic() - began
                progress = min(1.0, max(step / options.steps, seconds / limit if limit else 0.0))
                last = progress == 1.0
                show(progress)
                if last or step % options.evaluate_every == 0:
                    rate = self._evaluate(step)
                    seconds = round(time.monotonic() - began, 1)
                    self.evaluations.append(Evaluation(step, seconds, float(np.mean(losses)), done.learning_rate, rate))
                    if report is not None:
                        report(self.evaluations[-1])
                if last:
                    break

    def _batches(self) -> Iterator[Sequence[Example]]:
        while True:
            random = np.random.default_rng([self._options.seed, self.epochs])
            yield from batches(self._examples(self.epochs), self._options.batch_frames, random)
            self.epochs += 1

    def _rate(self) -> float:
        examples, references = self._validation
        with interrupts.deferred():
            return word_errors(references, self.transcripts(examples)).wer

    def _evaluate(self, step: int) -> float:
        rate = self._rate()
        state = {name: tensor.detach().clone() for name, tensor in self._network.state_dict().items()}
        self._best = sorted([*self._best, (rate, step, state)], key=lambda each: each[:2])[: self._options.average]
        return rate

    def _keep(self) -> tuple[float, list[int]]:
        """Load the best weights into the network."""
        rate, step, state = self._best[0]
        if len(self._best) > 1:
            self._network.load_state_dict(mean([state for _, _, state in self._best]))
            if (together := self._rate()) <= rate:
                return together, sorted(step for _, step, _ in self._best)
        self._network.load_state_dict(state)
        return rate, [step]


def mean(states: Sequence[State]) -> State:
    """The mean of weights; whole numbers, which count batches, come from the first."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if tensor.is_floating_point() else tensor
        for name, tensor in states[0].items()
    }
