"""Continuing training from a checkpoint: compatible and refused checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from intaglio.errors import BundleError, IntaglioError, SourceError, UsageError
from intaglio.networks.speech.checkpoint import write_checkpoint
from intaglio.networks.speech.network import SpeechNetwork
from intaglio.runtime.speech.vocabulary import Vocabulary
from intaglio.training.speech.start import load_start
from intaglio.training.speech.training_options import SpeechTraining

TINY = SpeechTraining(width=16, layers=2, heads=2, channels=4)
VOCABULARY = Vocabulary(["<blank>", " ", "a", "b"], 0, " ")


def network(seed: int, options: SpeechTraining = TINY) -> SpeechNetwork:
    torch.manual_seed(seed)
    return SpeechNetwork(options.config(len(VOCABULARY)), front_end=False)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of `network(1)`."""
    trained = network(1)
    vocabulary = {"tokens": VOCABULARY.tokens, "blank": VOCABULARY.blank, "word_mark": VOCABULARY.word_mark}
    write_checkpoint(tmp_path, trained.config, trained.state_dict(), vocabulary)
    return tmp_path


def test_weights_equal_the_checkpoint_for_any_dropout(checkpoint: Path) -> None:
    loaded, expected = network(2, replace(TINY, dropout=0.3)), network(1).state_dict()
    load_start(loaded, VOCABULARY, checkpoint)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (replace(TINY, width=32), r"its hidden_size is 16, got 32\. Give the options that it was trained with\."),
        (replace(TINY, architecture="conformer-ctc"), "its model_type is 'squeezeformer', got 'conformer-ctc'"),
        (replace(TINY, ablation="no-skip"), "its skip_connection is True, got False"),
    ],
    ids=["width", "architecture", "ablation"],
)
def test_checkpoint_of_another_network_is_refused(checkpoint: Path, options: SpeechTraining, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_start(network(2, options), VOCABULARY, checkpoint)


@pytest.mark.parametrize("tokens", [["<blank>", " ", "b", "a"], ["<blank>", " ", "a", "b", "ab"]])
def test_head_for_other_tokens_is_random(checkpoint: Path, tokens: list[str]) -> None:
    torch.manual_seed(2)
    loaded = SpeechNetwork(TINY.config(len(tokens)), front_end=False)
    before = {name: tensor.clone() for name, tensor in loaded.state_dict().items()}
    load_start(loaded, Vocabulary(tokens, 0, " "), checkpoint)
    trained = network(1).state_dict()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, before[name] if name.startswith("head.") else trained[name]), name


@pytest.mark.parametrize(
    ("name", "error"),
    [("model.safetensors", SourceError), ("config.json", SourceError), ("vocabulary.json", BundleError)],
)
@pytest.mark.parametrize("content", [None, b"", b"\xff{}", b'{"a": 1}', b"[" * 5000])
def test_damaged_checkpoint_prints_one_line(
    checkpoint: Path, name: str, error: type[IntaglioError], content: bytes | None
) -> None:
    if content is None:
        (checkpoint / name).unlink()
    else:
        (checkpoint / name).write_bytes(content)
    with pytest.raises(error) as raised:
        load_start(network(2), VOCABULARY, checkpoint)
    assert "\n" not in str(raised.value)


def test_missing_weights_are_named(checkpoint: Path) -> None:
    trained = network(1)
    weights = {name: tensor for name, tensor in trained.state_dict().items() if name != "head.bias"}
    write_checkpoint(checkpoint, trained.config, weights, json.loads((checkpoint / "vocabulary.json").read_bytes()))
    with pytest.raises(SourceError, match=r"head\.bias \(missing, expected \[4\]\)"):
        load_start(network(2), VOCABULARY, checkpoint)
