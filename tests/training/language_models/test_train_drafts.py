"""Training drafts: the model is unchanged, steps are independent, and training predicts the graph's outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import LAYERS, expected_drafts, save_drafts
from safetensors.numpy import load_file
from tiny_decoders import FAMILIES, save_decoder
from tiny_families import save_family

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.networks.drafts import HIDDEN_TRANSFER, MATRICES, MEDUSA, RECORD, Drafts
from intaglio.samples.sentences import sentences
from intaglio.training import train_hidden_transfer, train_medusa
from intaglio.training.language_models.checkpoint import open_network
from intaglio.training.language_models.drafter import drafter_of

SHORT: dict[str, Any] = {"steps_ahead": 2, "steps": 3, "batch_size": 2, "max_tokens": 24}
TRAININGS = [train_hidden_transfer, train_medusa]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(sentences()[:20]))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("llama") / "checkpoint", "llama")


@pytest.mark.parametrize("train", TRAININGS)
def test_checkpoint_is_copied_byte_for_byte(train: Any, checkpoint: Path, text: Path, tmp_path: Path) -> None:
    result = train(checkpoint, tmp_path / "made", text, **SHORT)
    copied = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    made = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    assert made.keys() == copied.keys() | {MATRICES, RECORD}
    assert copied.items() <= made.items()
    matrices = load_file(tmp_path / "made" / MATRICES)
    assert {name: array.shape for name, array in matrices.items()} == {
        f"drafts.{step}.weight": (32, 32) for step in (0, 1)
    }
    assert result.parameters == 2 * 32 * 32 and len(result.steps) == 2


def test_retrained_drafts_replace_those_of_the_source(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    train_hidden_transfer(checkpoint, tmp_path / "first", text, **SHORT)
    train_medusa(tmp_path / "first", tmp_path / "second", text, **SHORT)
    assert json.loads((tmp_path / "second" / RECORD).read_text()) == {"kind": "medusa", "steps": 2, "layers": []}


@pytest.mark.parametrize("train", TRAININGS)
def test_bfloat16_products_train_nearly_the_same(train: Any, checkpoint: Path, text: Path, tmp_path: Path) -> None:
    made = {name: train(checkpoint, tmp_path / name, text, **SHORT, precision=name) for name in ("float32", "bfloat16")}
    exact, rounded = ([step.kl_divergence for step in result.steps] for result in made.values())
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
    tensors = load_file(tmp_path / "bfloat16" / MATRICES)
    assert all(tensor.dtype == np.float32 and np.abs(tensor).max() > 0 for tensor in tensors.values())


def test_windows_of_some_layers_limit_the_text_of_hidden_transfer(text: Path, tmp_path: Path) -> None:
    source = save_family(tmp_path / "source", "gemma3_text", sliding_window=20)
    with pytest.raises(UsageError, match=r"windows of 26 tokens with the drafts: .* see only 20\. Reduce --max-tokens"):
        train_hidden_transfer(source, tmp_path / "made", text, **SHORT)
    assert train_hidden_transfer(source, tmp_path / "made", text, **SHORT | {"max_tokens": 18}).parameters


def test_drafts_are_compared_with_capped_logits(tmp_path: Path) -> None:
    import torch

    network, _ = open_network(
        save_family(tmp_path / "source", "gemma2", final_logit_softcapping=0.3, sliding_window=64)
    )
    windows = torch.arange(24).reshape(2, 12) + 40
    with torch.no_grad():
        expected = network(windows).logits
        for drafts in (Drafts(MEDUSA, 1), Drafts(HIDDEN_TRANSFER, 1, (1,))):
            own, drafted = drafter_of(network, drafts).logits(windows, 0)
            np.testing.assert_allclose(own, expected[:, 1:], atol=1e-6)
            assert drafted.shape == own.shape and 0.1 < drafted.abs().max() <= 0.3


def test_generated_tokens_are_trained_on_like_their_text(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    whole = text.read_text()
    (tmp_path / "texts.jsonl").write_text(json.dumps({"prompt": whole[:20], "text": whole[20:], "tokens": [1]}) + "\n")
    made = [
        train_medusa(checkpoint, tmp_path / data.stem, data, **SHORT).steps for data in (text, tmp_path / "texts.jsonl")
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize("train", TRAININGS)
def test_training_lowers_the_divergence_of_every_step(train: Any, text: Path, tmp_path: Path) -> None:
    source = save_decoder(tmp_path / "source", "gpt2", initializer_range=0.01)
    options = SHORT | {"steps": 40, "learning_rate": 1e-2}
    for step in train(source, tmp_path / "made", text, **options).steps:
        assert step.kl_divergence < 0.9 * step.kl_divergence_before
        assert 0 <= step.top1 <= step.top3 <= 1


def test_draft_step_is_independent_of_later_steps(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    one = train_hidden_transfer(checkpoint, tmp_path / "one", text, layers=[1], **SHORT | {"steps_ahead": 1})
    two = train_hidden_transfer(checkpoint, tmp_path / "two", text, layers=[1, 1], **SHORT)
    first, both = (load_file(tmp_path / name / MATRICES) for name in ("one", "two"))
    np.testing.assert_array_equal(first["drafts.0.weight"], both["drafts.0.weight"])
    assert one.steps[0] == two.steps[0]
    assert np.abs(both["drafts.1.weight"]).max() > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["hidden-transfer", "medusa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_trained_drafts_use_the_attention_of_the_model(family: str, kind: str, tmp_path: Path) -> None:
    import torch

    from intaglio.training.language_models.checkpoint import open_network
    from intaglio.training.language_models.drafter import drafter_of

    folder = save_drafts(save_decoder(tmp_path / "source", family), tmp_path / "drafting", kind)
    network, _ = open_network(folder)
    drafter = drafter_of(network, Drafts(kind, 3, LAYERS))  # type: ignore[arg-type]
    matrices = load_file(folder / MATRICES)
    for step, matrix in enumerate(drafter.matrices):
        matrix.get_parameter("weight").data = torch.from_numpy(matrices[f"drafts.{step}.weight"])
    windows = np.array(
        [[65, 32, 99, 97, 116, 32, 115, 97, 116, 32, 111, 110], [72, 101, 108, 108, 111, 32, 119, 111] + [33] * 4]
    )
    for step in range(3):
        with torch.no_grad():
            own, found = drafter.logits(torch.from_numpy(windows), step)
            expected_own = network(torch.from_numpy(windows)).logits[:, step + 1 :]
        np.testing.assert_allclose(own, expected_own, atol=1e-4, rtol=0)
        for row, window in enumerate(windows.tolist()):
            for origin in (0, 4, 10 - step):
                expected = expected_drafts(folder, window, origin)[step]
                np.testing.assert_allclose(found[row, origin], expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps_ahead": 0}, "steps ahead 0: expected at least 1"),
        ({"layers": [0]}, r"1 transfer layers \[0\] for 2 steps ahead"),
        ({"layers": [1, 0]}, r"transfer layers \[1, 0\], expected 0 to 1"),
        ({"layers": [0, 2]}, r"transfer layers \[0, 2\], expected 0 to 1"),
        ({"max_tokens": 3}, "windows of 3 tokens: too short for 2 steps ahead"),
        ({"learning_rate": 0.0}, "learning rate 0.0: expected a positive number"),
        ({"precision": "float8"}, "precision 'float8': expected one of float32, bfloat16"),
    ],
)
def test_options_out_of_range_are_refused(
    options: dict[str, Any], message: str, checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train_hidden_transfer(checkpoint, tmp_path / "made", text, **SHORT | options)
    assert not (tmp_path / "made").exists()


def test_invalid_sources_and_outputs_print_one_line(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is the source itself, which would be overwritten"):
        train_medusa(checkpoint, checkpoint, text, force=True)
    with pytest.raises(SourceError, match=r"no readable config\.json"):
        train_medusa(tmp_path, tmp_path / "made", text)


def test_command_line_trains_drafts(checkpoint: Path, text: Path, tmp_path: Path, intaglio: Callable[..., Any]) -> None:
    arguments = ("--data", text, "--steps", 1, "--max-tokens", 32)
    made = tmp_path / "made"
    code, out, err = intaglio(
        "train", "hidden-transfer", checkpoint, "-o", made, *arguments, "--layers", "0,1,1", "--json"
    )
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert [step["layer"] for step in result["steps"]] == [0, 1, 1] and out.count("\n") == 1
    assert export(str(made), tmp_path / "bundle").outputs.keys() == {"logits", "draft_logits"}
    code, out, _ = intaglio("train", "medusa", checkpoint, "-o", tmp_path / "heads", *arguments, "--steps-ahead", 2)
    assert code == 0 and "+2" in out and "parameters of drafts" in out
    code, _, err = intaglio("train", "hidden-transfer", checkpoint, "-o", tmp_path / "x", *arguments, "--layers", "a")
    assert code == 2 and "--layers 'a': expected comma-separated whole numbers" in err and err.count("\n") == 1
