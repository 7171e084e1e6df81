"""The training loop: fit the network's outputs to the teacher's, and keep the best state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from intaglio import interrupts
from intaglio.display.progress import track
from intaglio.errors import GraphError
from intaglio.runtime.engines.engine import Array, Engine
from intaglio.training.integer.network import IntegerNetwork
from intaglio.training.integer.objective import distillation_loss
from intaglio.training.integer.samples import Sample

WARM_UP = 0.1  # fraction of the steps in which the learning rate rises
EVALUATIONS = 10  # on the held-out samples, evenly spaced
SPIKE = 2.0  # gradients are clipped to this multiple of the mean norm of earlier ones


class Distiller:
    """Trains `network` to reproduce the outputs `outputs` of the engine `teacher`."""

    def __init__(self, network: IntegerNetwork, teacher: Engine, outputs: Sequence[str], held_out: Sequence[Sample]):
        self.network = network
        self.teacher = teacher
        self.outputs = list(outputs)
        self.held_out = list(held_out)
        self._expected = [_tensors(teacher.run(feeds)) for feeds in self.held_out]

    def train(self, batches: Iterator[Sample], steps: int, rates: Mapping[str, float]) -> tuple[int, dict[int, float]]:
        """Train, restore the best evaluated state, and return its step and the losses by step.

        `rates` are the highest learning rates by kind (see `IntegerNetwork.parameter_groups`).
        """
        network = self.network
        optimiser = torch.optim.Adam(network.parameter_groups(rates))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda done: _rate(done, steps))
        evaluated = {math.ceil(steps * part / EVALUATIONS) for part in range(1, EVALUATIONS + 1)}
        losses = {0: self.loss()}
        best, state = 0, _copy(network)
        typical = 0.0  # length of the gradient
        for number in track(range(1, steps + 1), "training", total=steps):
            with interrupts.deferred():
                length = self._step(next(batches), optimiser, typical)
                schedule.step()
                typical = length if number == 1 else 0.9 * typical + 0.1 * min(length, SPIKE * typical)
                if number in evaluated:
                    losses[number] = self.loss()
                    if losses[number] < losses[best]:
                        best, state = number, _copy(network)
        network.load_state_dict(state)
        return best, losses

    @torch.no_grad()
    def loss(self) -> float:
        """The mean loss of the held-out samples."""
        total = samples = 0.0
        for feeds, expected in zip(self.held_out, self._expected, strict=True):
            count = len(next(iter(feeds.values())))
            total += count * self._loss(feeds, expected).item()
            samples += count
        return total / samples

    def _loss(self, feeds: Sample, expected: Mapping[str, Tensor]) -> Tensor:
        inputs = _tensors(feeds)
        return distillation_loss(self.network(inputs), expected, inputs, self.outputs)

    def _step(self, feeds: Sample, optimiser: torch.optim.Optimizer, typical: float) -> float:
        """Run one step; return the norm of the gradient before clipping."""
        optimiser.zero_grad()
        loss = self._loss(feeds, _tensors(self.teacher.run(feeds)))
        loss.backward()  # type: ignore[no-untyped-call]
        length = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), SPIKE * typical or math.inf))
        if not math.isfinite(length):
            raise GraphError(f"training: the gradient is {length}, the loss {loss.item():g}. Lower the learning rates.")
        optimiser.step()
        self.network.project()
        return length


def _rate(done: int, steps: int) -> float:
    """The fraction of the highest learning rate after `done` of `steps`: linear warm-up, then cosine decay."""
    warm = max(1, round(WARM_UP * steps))
    if done < warm:
        return (done + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (done - warm) / max(1, steps - warm)))


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _copy(network: IntegerNetwork) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
