"""Training an early exit: losses, metrics, and output files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import save_drafts
from early_exits import exit_logits, shortened
from hypothesis import given
from hypothesis import strategies as st
from tiny_decoders import FAMILIES, save_decoder
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.networks.early_exit import RECORD, default_layer
from intaglio.samples.sentences import sentences
from intaglio.training import prune, train_early_exit
from intaglio.training.language_models.checkpoint import read_windows

SHORT: dict[str, Any] = {"steps": 3, "batch_size": 2, "max_tokens": 24}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(sentences()[:20]))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("llama") / "checkpoint", "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_exit_is_a_shorter_model_with_the_same_norm_and_head(family: str, tmp_path: Path) -> None:
    """The loss is the mean of the losses of transformers for the two models."""
    import torch

    from intaglio.training.language_models.checkpoint import open_network
    from intaglio.training.language_models.exit_tuner import ExitTuner, every

    depth = 3
    sizes = {"n_layer" if family == "gpt2" else "num_hidden_layers": depth}
    folder = save_decoder(tmp_path / "source", family, **sizes)
    network, _ = open_network(folder)
    windows = np.random.default_rng(0).integers(0, 250, (3, 20))
    found = ExitTuner(network, every(depth), 1e-3).measure(windows, batch_size=2)
    ids = torch.from_numpy(windows)
    with torch.inference_mode():
        models = [*(shortened(folder, layer) for layer in range(1, depth)), network]
        *_, last = expected = [model(ids, labels=ids) for model in models]
    for exit_, each in zip(found, expected, strict=True):
        assert exit_.loss == pytest.approx(each.loss.item(), rel=1e-4)
        same = each.logits[:, :-1].argmax(-1) == last.logits[:, :-1].argmax(-1)
        assert exit_.agreement == pytest.approx(same.float().mean().item(), abs=1e-6)


@given(st.integers(2, 60), st.data())
def test_loss_weights_equal_the_appendix(depth: int, data: st.DataObject) -> None:
    from intaglio.training.language_models.exit_tuner import both, every

    layer = data.draw(st.integers(1, depth - 1))
    assert both(layer, depth) == {layer: 0.5, depth: 0.5}
    total = sum(range(1, depth + 1))
    assert every(depth) == pytest.approx({block: block / total for block in range(1, depth + 1)})


@pytest.mark.parametrize("weights", [{1: 0.5, 2: 0.5}, {1: 1 / 3, 2: 2 / 3}])
def test_every_loss_has_its_weight(weights: dict[int, float], checkpoint: Path) -> None:
    """Without warm-up and Adam, a step follows the sum of both gradients: the direction of their mean."""
    import torch

    from intaglio.training.language_models.checkpoint import open_network
    from intaglio.training.language_models.exit_tuner import ExitTuner

    windows = np.random.default_rng(0).integers(0, 250, (2, 20))
    network, _ = open_network(checkpoint)
    ids = torch.from_numpy(windows)
    tuner = ExitTuner(network, weights, 1e-9)  # the weights stay, the gradients remain in them
    tuner.step(windows)
    found = network.model.layers[0].mlp.up_proj.weight.grad
    models = (shortened(checkpoint, 1), open_network(checkpoint)[0])
    expected = torch.zeros_like(found)
    for weight, model in zip(weights.values(), models, strict=True):
        model(ids, labels=ids).loss.backward()
        expected += weight * model.model.layers[0].mlp.up_proj.weight.grad
    scale = (found * expected).sum() / (expected * expected).sum()  # long gradients were clipped
    torch.testing.assert_close(found, scale * expected, rtol=1e-3, atol=1e-6)


def test_training_lowers_both_losses_and_raises_the_agreement(text: Path, tmp_path: Path) -> None:
    source = save_decoder(tmp_path / "source", "gpt2", initializer_range=0.01)
    result = train_early_exit(source, tmp_path / "made", text, **SHORT | {"steps": 80, "learning_rate": 3e-3})
    assert [each.layer for each in result.exits] == [1, 2]
    assert all(each.loss < 0.8 * each.loss_before for each in result.exits)
    assert result.exits[0].agreement > result.exits[0].agreement_before
    assert (result.layer, result.layers) == (1, 2)


@pytest.mark.proof
def test_training_every_layer_lowers_the_loss_after_each_layer(text: Path, tmp_path: Path) -> None:
    source = save_decoder(tmp_path / "source", "gpt2", initializer_range=0.01, n_layer=3)
    options = SHORT | {"steps": 80, "learning_rate": 3e-3, "every_layer": True}
    result = train_early_exit(source, tmp_path / "made", text, **options)
    assert (result.layer, result.layers, [each.layer for each in result.exits]) == ("every", 3, [1, 2, 3])
    assert all(each.loss < 0.8 * each.loss_before for each in result.exits)
    assert all(each.agreement > each.agreement_before for each in result.exits[:-1])
    assert json.loads((tmp_path / "made" / RECORD).read_text()) == {"layer": "every"}
    export(str(tmp_path / "made"), tmp_path / "bundle", check=False)
    decoder = Bundle.open(tmp_path / "bundle").manifest.decoder
    assert decoder is not None and decoder.saturation_exits and not decoder.exit_layer


@pytest.mark.parametrize("model_type", ["gpt_neox", "gemma2"])
def test_exits_of_traced_families_have_the_loss_of_a_shorter_model(model_type: str, text: Path, tmp_path: Path) -> None:
    source = save_family(tmp_path / "source", model_type)
    result = train_early_exit(source, tmp_path / "made", text, **SHORT)
    _, held_out = read_windows(source, text, "--data", SHORT["max_tokens"])
    expected = [
        float(np.mean([cross_entropy(logits[:-1], row[1:]) for logits, row in zip(found, held_out, strict=True)]))
        for layer in (1, 2)
        for found in [exit_logits(source, layer, held_out.tolist())]
    ]
    np.testing.assert_allclose([each.loss_before for each in result.exits], expected, rtol=1e-4)


def cross_entropy(logits: Any, tokens: Any) -> float:
    """Nats per token, of logits [tokens, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return float(np.mean(np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(tokens)), tokens]))


def test_folder_equals_the_source_with_a_record(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    train_early_exit(checkpoint, tmp_path / "made", text, **SHORT)
    names = {path.name for path in checkpoint.iterdir()}
    assert {path.name for path in (tmp_path / "made").iterdir()} == names | {RECORD}
    assert json.loads((tmp_path / "made" / RECORD).read_text()) == {"layer": 1}
    export(str(tmp_path / "made"), tmp_path / "bundle", check=False)
    decoder = Bundle.open(tmp_path / "bundle").manifest.decoder
    assert decoder is not None and decoder.exit_layer == 1


def test_records_of_other_weights_are_not_copied(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    drafting = save_drafts(checkpoint, tmp_path / "drafting", "medusa")
    train_early_exit(drafting, tmp_path / "made", text, **SHORT)
    assert not {"drafts.json", "drafts.safetensors"}.intersection(path.name for path in (tmp_path / "made").iterdir())
    prune(tmp_path / "made", tmp_path / "pruned", text, stages=1, **SHORT)
    assert not (tmp_path / "pruned" / RECORD).exists()


@pytest.mark.parametrize(("depth", "layer"), [(2, 1), (4, 1), (6, 2), (12, 3), (32, 8)])
def test_default_exit_is_after_a_quarter_of_the_blocks(depth: int, layer: int) -> None:
    assert default_layer(depth) == layer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 0}, "exit after 0 blocks, expected 1 to 1"),
        ({"layer": 2}, "exit after 2 blocks, expected 1 to 1"),
        ({"layer": 1, "every_layer": True}, "--layer 1 and --every-layer exclude each other"),
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"learning_rate": 0.0}, "learning rate 0.0: expected a positive number"),
    ],
)
def test_options_out_of_range_are_refused(
    options: dict[str, Any], message: str, checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train_early_exit(checkpoint, tmp_path / "made", text, **SHORT | options)
    assert not (tmp_path / "made").exists()


def test_sources_without_enough_blocks_are_refused(text: Path, tmp_path: Path) -> None:
    single = save_decoder(tmp_path / "single", "gpt2", n_layer=1)
    with pytest.raises(UsageError, match="the model has 1 block, an early exit needs at least 2"):
        train_early_exit(single, tmp_path / "made", text, **SHORT)
    with pytest.raises(UsageError, match="the model has 1 block, an early exit needs at least 2"):
        train_early_exit(single, tmp_path / "made", text, every_layer=True, **SHORT)
    with pytest.raises(SourceError, match=r"no readable config\.json"):
        train_early_exit(tmp_path, tmp_path / "made", text)
    with pytest.raises(UsageError, match="is the source itself, which would be overwritten"):
        train_early_exit(single, single, text, force=True)


def test_command_line_trains_an_early_exit(
    checkpoint: Path, text: Path, tmp_path: Path, intaglio: Callable[..., Any]
) -> None:
    arguments = ("--data", text, "--steps", 1, "--max-tokens", 32)
    code, out, err = intaglio("train", "early-exit", checkpoint, "-o", tmp_path / "made", *arguments, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["layer"] == 1 and out.count("\n") == 1
    code, out, _ = intaglio("train", "early-exit", checkpoint, "-o", tmp_path / "again", *arguments, "--layer", 1)
    assert code == 0 and "after 1 of 2 blocks" in out and "agreement with the whole model" in out
    code, out, _ = intaglio("train", "early-exit", checkpoint, "-o", tmp_path / "every", *arguments, "--every-layer")
    assert code == 0 and "after 1 of 2 blocks" in out and "whole model: loss" in out
    code, _, err = intaglio(
        "train", "early-exit", checkpoint, "-o", tmp_path / "x", *arguments, "--every-layer", "--layer", 1
    )
    assert code == 2 and "--layer 1 and --every-layer exclude each other" in err and err.count("\n") == 1
    code, _, err = intaglio("train", "early-exit", checkpoint, "-o", tmp_path / "x", *arguments, "--layer", 7)
    assert code == 2 and "exit after 7 blocks, expected 1 to 1" in err and err.count("\n") == 1
