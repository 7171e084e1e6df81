"""The core of the training: the loss, its steps, and greedy decoding."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch

from intaglio.errors import GraphError
from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Example
from intaglio.training.speech.learning_rate import LearningRate
from intaglio.training.speech.spec_augment import SpecAugment
from intaglio.training.speech.speech_trainer import MUON_RATE, SpeechTrainer, greedy_tokens
from intaglio.training.speech.training_options import Architecture, Optimizer, SpeechTraining

TOKENS, MELS = 5, FrontEnd().mels
PLAIN = SpecAugment(band_masks=0, time_masks=0)


def network(architecture: Architecture = "squeezeformer", dropout: float = 0.0) -> SpeechNetwork:
    torch.manual_seed(0)
    options = SpeechTraining(architecture, width=32, layers=2, heads=2, channels=4, dropout=dropout)
    return SpeechNetwork(options.config(TOKENS), front_end=False)


def example(tokens: tuple[int, ...], frames: int, seed: int) -> Example:
    """Each token has its own frequency bands, one after the other."""
    features = np.random.default_rng(seed).normal(0, 0.3, (frames, MELS))
    for place, token in enumerate(tokens):
        features[place * frames // len(tokens) : (place + 1) * frames // len(tokens), token * 12 : token * 12 + 12] += 2
    return Example(features.astype(np.float16), tokens)


EXAMPLES = [example(tokens, 60 + 8 * index, index) for index, tokens in enumerate([(1, 2), (3, 1), (4, 2, 1), (2, 3)])]


@pytest.mark.covering(1)
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
@pytest.mark.parametrize("architecture", get_args(Architecture))
def test_few_utterances_are_learned(architecture: Architecture, optimizer: Optimizer) -> None:
    trained = network(architecture)
    trainer = SpeechTrainer(trained, LearningRate(5e-3, 5, 30), PLAIN, seed=0, optimizer=optimizer)
    losses: list[float] = []
    found: list[list[int]] = []
    while len(losses) < 90 and found != [list(each.tokens) for each in EXAMPLES]:
        trained.train()  # decoding leaves it in eval mode
        losses += [trainer.step(EXAMPLES).loss for _ in range(15)]
        found = greedy_tokens(trained, EXAMPLES, 1000)
    assert found == [list(each.tokens) for each in EXAMPLES]
    assert losses[-1] < 0.1 * losses[0]


def test_each_step_uses_the_scheduled_learning_rate() -> None:
    trainer = SpeechTrainer(network(), LearningRate(1e-3, 2, 1), PLAIN, seed=0)
    assert [trainer.step(EXAMPLES).learning_rate for _ in range(4)] == pytest.approx([5e-4, 1e-3, 1e-3, 2 / 3 * 1e-3])


def test_learning_rate_ends_at_zero() -> None:
    trainer = SpeechTrainer(network(), LearningRate(1e-3, 1, 100, cool_down=0.5), PLAIN, seed=0)
    rates = [trainer.step(EXAMPLES, progress).learning_rate for progress in (0.0, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([1e-3, 1e-3, 5e-4, 0.0])


def test_norms_and_biases_have_no_weight_decay() -> None:
    trained = network()
    trainer = SpeechTrainer(trained, LearningRate(1.0, 1, 1), PLAIN, seed=0)
    ((adamw, _),) = trainer._optimizers
    decays = {id(each): group["weight_decay"] for group in adamw.param_groups for each in group["params"]}
    for name, parameter in trained.named_parameters():
        vector = name.endswith("bias") or ".norm." in name or ".scaling." in name
        assert (decays[id(parameter)] == 0) == (parameter.ndim == 1), name
        assert not vector or decays[id(parameter)] == 0, name


def test_muon_trains_the_matrices_and_adamw_everything_else() -> None:
    trained = network()
    trainer = SpeechTrainer(trained, LearningRate(1e-3, 1, 100), PLAIN, seed=0, optimizer="muon")
    (adamw, _), (muon, _) = trainer._optimizers
    seen = [id(each) for optimizer in (adamw, muon) for group in optimizer.param_groups for each in group["params"]]
    assert sorted(seen) == sorted(id(each) for each in trained.parameters())
    assert {each.ndim for group in muon.param_groups for each in group["params"]} == {2}
    before = {name: each.clone() for name, each in trained.named_parameters() if each.ndim == 2}
    trainer.step(EXAMPLES)
    for name, each in trained.named_parameters():
        if name in before:  # the largest change equals an orthogonal matrix for any gradient size
            rows, columns = each.shape
            size = 1e-3 * MUON_RATE * max(1, rows / columns) ** 0.5
            assert 0.5 * size <= torch.linalg.matrix_norm((each - before[name]).detach(), 2) <= 1.5 * size, name


def test_masking_starts_after_the_warm_up() -> None:
    calls: list[torch.Tensor] = []

    def augment(features: torch.Tensor, frames: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        calls.append(features)
        return features

    trainer = SpeechTrainer(network(), LearningRate(1e-3, 1, 1), augment, seed=0, mask_after=2)
    seen = []
    for _ in range(4):
        trainer.step(EXAMPLES)
        seen.append(len(calls))
    assert seen == [0, 0, 1, 2]


def test_nan_loss_prints_one_line_and_changes_no_weight() -> None:
    trained = network()
    before = {name: each.clone() for name, each in trained.named_parameters()}
    trainer = SpeechTrainer(trained, LearningRate(1e-3, 1, 1), PLAIN, seed=0)
    broken = Example(np.full((40, MELS), np.nan, np.float16), (1,))
    with pytest.raises(GraphError, match=r"^the loss is nan after 1 steps?\. Lower the learning rate\.$"):
        trainer.step([broken])
    for name, each in trained.named_parameters():
        assert torch.equal(each, before[name])


def test_gradient_norm_is_clipped() -> None:
    trained = network()
    trainer = SpeechTrainer(trained, LearningRate(1e-3, 1, 100), PLAIN, seed=0)
    loud = [Example(each.features * np.float16(500), each.tokens) for each in EXAMPLES]
    trainer.step(loud)
    norm = sum(float(each.grad.square().sum()) for each in trained.parameters() if each.grad is not None) ** 0.5
    assert norm <= 5.0 * 1.001


def test_greedy_tokens_keep_the_example_order_for_any_batches() -> None:
    examples = [example((1 + index % 4, 2), 40 + 7 * (index * 5 % 8), index) for index in range(8)]
    trained = network()
    torch.nn.init.normal_(trained.head.weight)  # so that frames differ
    alone = [greedy_tokens(trained, [each], 1)[0] for each in examples]
    assert len({tuple(each) for each in alone}) > 4
    assert greedy_tokens(trained, examples, 200) == alone
    assert greedy_tokens(trained, examples, 10_000) == alone
    assert not trained.training
