"""The losses of a training step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intaglio.networks.speech.configuration import FrontEnd
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.training.speech.batches import Example, collate
from intaglio.training.speech.ctc_losses import TrainingLoss
from intaglio.training.speech.tokens import characters
from intaglio.training.speech.training_options import ABLATIONS, Ablation, Architecture, SpeechTraining

TOKENS, MELS = 5, FrontEnd().mels
LETTERS = characters()


def network(architecture: Architecture = "squeezeformer", ablation: Ablation | None = None) -> SpeechNetwork:
    torch.manual_seed(0)
    options = SpeechTraining(architecture, width=32, layers=4, heads=2, channels=4, ablation=ablation)
    return SpeechNetwork(options.config(TOKENS), front_end=False).eval()


def example(tokens: tuple[int, ...], frames: int, letters: str = "") -> Example:
    features = np.random.default_rng(len(tokens)).normal(0, 1, (frames, MELS)).astype(np.float16)
    return Example(features, tokens, LETTERS.encode(letters))


def test_utterance_with_more_tokens_than_frames_is_ignored() -> None:
    fitting, too_long = example((1, 2), 60), example((1, 2, 3, 4) * 5, 16)
    trained = network()
    both = collate([fitting, too_long])
    loss = TrainingLoss(trained)(both.features, both).own
    loss.backward()
    gradients = [parameter.grad.clone() for parameter in trained.parameters() if parameter.grad is not None]
    trained.zero_grad()
    alone = collate([fitting])
    expected = TrainingLoss(trained)(alone.features, alone).own
    expected.backward()
    share = len(fitting.tokens) / (len(fitting.tokens) + len(too_long.tokens))
    assert loss.item() == pytest.approx(share * expected.item(), rel=1e-4)
    wanted = [share * parameter.grad for parameter in trained.parameters() if parameter.grad is not None]
    for gradient, each in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, each, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize(
    ("architecture", "ablation"),
    [("conformer-ctc", None), ("squeezeformer", None), *(("squeezeformer", each) for each in ABLATIONS)],
)
def test_letter_loss_is_available_after_any_block(
    architecture: Architecture, ablation: Ablation | None, block: int
) -> None:
    """Assert that the loss equals torch's CTC of each row alone, on the output of `block`."""
    trained = network(architecture, ablation)
    batch = collate([example((1, 2), 96, "ab"), example((3,), 61, "c a")])
    loss = TrainingLoss(trained, 0.25, block)
    losses = loss(batch.features, batch)
    assert losses.own.item() == TrainingLoss(trained)(batch.features, batch).own.item()
    of_letters = (losses.minimised - 0.75 * losses.own).item() / 0.25

    seen: list[torch.Tensor] = []
    module = trained.encoder.get_submodule(f"layers.{block}")
    handle = module.register_forward_hook(lambda module, given, out: seen.append(out))
    total = 0.0
    for row in [example((1, 2), 96, "ab"), example((3,), 61, "c a")]:
        alone = collate([row])
        trained(alone.features, alone.frames)
        assert loss.head is not None
        log_probs = loss.head(seen.pop()).log_softmax(-1)[0]
        target = torch.tensor(row.letters)
        lengths = (torch.tensor(len(log_probs)), torch.tensor(len(target)))
        total += torch.nn.functional.ctc_loss(log_probs, target, *lengths, reduction="sum").item()
    handle.remove()
    assert of_letters == pytest.approx(total / 5, rel=1e-3)


def test_zero_letter_share_uses_only_the_main_loss_and_adds_no_weight() -> None:
    trained = network()
    batch = collate([example((1, 2), 60, "ab")])
    loss = TrainingLoss(trained)
    own, minimised = loss(batch.features, batch)
    assert own is minimised
    assert list(loss.parameters()) == []


def test_letter_loss_trains_the_earlier_blocks_and_its_head() -> None:
    trained = network()
    loss = TrainingLoss(trained, 1 - 1e-9, 0)
    assert len(list(loss.parameters())) == 2  # those of the network are not among them
    batch = collate([example((1, 2), 60, "ab")])
    loss(batch.features, batch).minimised.backward()
    for name, parameter in trained.named_parameters():
        if name.startswith(("encoder.subsampling", "encoder.layers.0.feed_forward2.module.linear2.weight")):
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-5, name
        if name.startswith("encoder.layers.3"):
            assert parameter.grad is not None and parameter.grad.abs().max() < 1e-5, name
