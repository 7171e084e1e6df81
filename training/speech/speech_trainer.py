"""Training a speech recogniser with the CTC loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intaglio.errors import GraphError
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Example, batches, collate
from intaglio.training.speech.ctc_losses import Losses, TrainingLoss
from intaglio.training.speech.learning_rate import LearningRate
from intaglio.training.speech.muon import Muon
from intaglio.training.speech.training_options import Optimizer

WEIGHT_DECAY = 5e-4  # thesis, section 5.3
BETAS = (0.9, 0.98)  # Gulati et al., arXiv:2005.08100, section 3.1
MUON_DECAY = 0.1  # without it matrices grow until products of attention exceed float16
MUON_RATE = 10.0  # times the learning rate of AdamW: its steps have the same size in all directions of a matrix
LARGEST_GRADIENT = 5.0  # norm; larger ones are scaled down, as one bad batch can undo an hour


@dataclass(frozen=True)
class Step:
    """The report of a training step."""

    loss: float  # nats a token; the loss of letters is not included
    learning_rate: float


class SpeechTrainer:
    """Trains `network`, which takes features, on batches of examples.

    `augment` changes the features after the first `mask_after` steps. `letters`: the share of the loss of letters
    after the block `letters_after` (`TrainingLoss`).
    """

    def __init__(
        self,
        network: SpeechNetwork,
        rate: LearningRate,
        augment: Callable[[Tensor, Tensor, torch.Generator], Tensor],
        seed: int,
        optimizer: Optimizer = "adamw",
        mask_after: int = 0,
        letters: float = 0.0,
        letters_after: int = 0,
    ):
        self.network = network.train()
        self._rate, self._augment, self._mask_after = rate, augment, mask_after
        self._random = torch.Generator().manual_seed(seed)
        self._loss = TrainingLoss(network, letters, letters_after)
        self._parameters = [*network.parameters(), *self._loss.parameters()]
        self._optimizers = _optimizers(self._parameters, optimizer)
        self._steps = 0

    def step(self, examples: Sequence[Example], progress: float = 0.0) -> Step:
        """One step of the optimiser; `progress`: the part of the training before it, 0 to 1.

        Raises `GraphError` if the loss is NaN or infinite.
        """
        self._steps += 1
        rate = self._rate.at(self._steps, progress)
        for optimizer, times in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * times
        batch = collate(examples)
        features = batch.features
        if self._steps > self._mask_after:
            features = self._augment(features, batch.frames, self._random)
        losses: Losses = self._loss(features, batch)
        values = losses.own.item(), losses.minimised.item()
        if broken := [value for value in values if not math.isfinite(value)]:
            raise GraphError(f"the loss is {broken[0]} after {self._steps} steps. Lower the learning rate.")
        for optimizer, _ in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        losses.minimised.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, LARGEST_GRADIENT)
        for optimizer, _ in self._optimizers:
            optimizer.step()
        return Step(values[0], rate)


def _optimizers(parameters: Sequence[nn.Parameter], name: Optimizer) -> list[tuple[torch.optim.Optimizer, float]]:
    """The optimisers of all parameters, each with its learning rate as a multiple of the schedule's."""
    matrices = [each for each in parameters if each.ndim == 2] if name == "muon" else []
    orthogonal = {id(each) for each in matrices}
    others = [each for each in parameters if id(each) not in orthogonal]
    groups = [
        {"params": [each for each in others if each.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [each for each in others if each.ndim <= 1], "weight_decay": 0.0},
    ]
    found: list[tuple[torch.optim.Optimizer, float]] = [(torch.optim.AdamW(groups, betas=BETAS), 1.0)]
    if matrices:
        found.append((Muon(matrices, weight_decay=MUON_DECAY), MUON_RATE))
    return found


@torch.inference_mode()
def greedy_tokens(network: SpeechNetwork, examples: Sequence[Example], frames: int) -> list[list[int]]:
    """The tokens of each example by greedy decoding, in batches of `frames` frames; leaves the network in eval mode."""
    network.eval()
    found: dict[int, list[int]] = {}
    for group in batches(examples, frames):
        batch = collate(group)
        log_probs, lengths = network(batch.features, batch.frames)
        best = log_probs.argmax(-1)
        for example, row, length in zip(group, best, lengths.tolist(), strict=True):
            kept = torch.unique_consecutive(row[:length]).tolist()
            found[id(example)] = [token for token in kept if token != network.config.blank_token_id]
    return [found[id(example)] for example in examples]
