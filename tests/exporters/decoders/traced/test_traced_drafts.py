"""Drafts and early exits of decoders that are exported by tracing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from covering import few
from drafts import TEXTS, assert_expected_drafts, save_drafts
from early_exits import exit_logits, save_early_exit
from tiny_families import save_family

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.exporters.decoders.check import stepwise_outputs
from intaglio.exporters.source import load_module
from intaglio.networks.drafts import HIDDEN_TRANSFER, MEDUSA
from intaglio.runtime import generate, open_engine
from intaglio.runtime.sessions.step import decoder_of
from intaglio.runtime.text.chunks import chunk_feeds
from intaglio.training import train_hidden_transfer, train_medusa

Proved = Callable[..., None]
PROMPTS = ["Hello wo", "The"]
TRANSFERRING = {  # what tells rows of pseudo states from those of tokens
    "gemma3_text": "two kinds of rotations and of masks",
    "mixtral": "experts see each row",
    "deepseek_v2": "rotations by complex numbers, latent attention",
    "gpt_neox": "parallel residuals",
}


@pytest.mark.proof
@pytest.mark.parametrize("model_type", few(TRANSFERRING, ["gemma3_text"]))
def test_hidden_transfer_equals_the_reference_and_keeps_the_text(
    model_type: str, tmp_path: Path, proved: Proved
) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", model_type)
    folder = save_drafts(checkpoint, tmp_path / "drafting", HIDDEN_TRANSFER, (0, 1, 1))
    assert export(str(folder), tmp_path / "bundle").outputs.keys() == {"logits", "draft_logits"}
    assert_expected_drafts(folder, tmp_path / "bundle", relative=2e-5)
    tokens = {}
    for strategy in ("greedy", "hidden-transfer"):
        found = generate(tmp_path / "bundle", PROMPTS, max_new_tokens=30, strategy=strategy, batch=2, ignore_eos=True)
        tokens[strategy] = [text.tokens for text in found]
    assert tokens["greedy"] == tokens["hidden-transfer"]
    proved(model_type, "generate", "traced", strategies=["hidden-transfer"])


def test_drafts_of_convolutions_are_refused(tmp_path: Path) -> None:
    folder = save_drafts(save_family(tmp_path / "checkpoint", "lfm2"), tmp_path / "drafting", MEDUSA, (0, 1))
    with pytest.raises(SourceError, match=r"cannot follow the paths of a draft tree\..*Or remove drafts\.json"):
        export(str(folder), tmp_path / "bundle")
    (tmp_path / "text.txt").write_text("Some text. " * 20)
    with pytest.raises(UsageError, match="lfm2 has layers of convolutions"):
        train_medusa(tmp_path / "checkpoint", tmp_path / "trained", tmp_path / "text.txt")


def test_hidden_transfer_between_shared_caches_is_refused(tmp_path: Path) -> None:
    folder = save_drafts(
        save_family(tmp_path / "checkpoint", "gemma4_text"), tmp_path / "drafting", HIDDEN_TRANSFER, (0, 1)
    )
    with pytest.raises(SourceError, match="layers that share the caches of earlier ones"):
        export(str(folder), tmp_path / "bundle")
    (tmp_path / "text.txt").write_text("Some text. " * 20)
    with pytest.raises(UsageError, match=r"share the caches of earlier ones.*Train Medusa heads"):
        train_hidden_transfer(tmp_path / "checkpoint", tmp_path / "trained", tmp_path / "text.txt", max_tokens=16)


@pytest.mark.proof
def test_medusa_heads_equal_the_reference(tmp_path: Path, proved: Proved) -> None:
    folder = save_drafts(save_family(tmp_path / "checkpoint", "phi3"), tmp_path / "drafting", MEDUSA, (0, 1))
    assert export(str(folder), tmp_path / "bundle").passed
    assert_expected_drafts(folder, tmp_path / "bundle", relative=2e-5)
    proved("phi3", "generate", "traced", strategies=["medusa"])


@pytest.mark.parametrize("model_type", few(["cohere2", "gemma4_text", "phi3"], []))
def test_early_exit_equals_a_model_of_fewer_blocks(model_type: str, tmp_path: Path, proved: Proved) -> None:
    layer = 2 if model_type == "gemma4_text" else 1  # whose other layers share the caches of these
    checkpoint = save_family(tmp_path / "checkpoint", model_type)
    assert export(str(save_early_exit(checkpoint, tmp_path / "exiting", layer)), tmp_path / "bundle").passed
    bundle = Bundle.open(tmp_path / "bundle")
    found = stepwise_outputs(bundle.model_path, decoder_of(bundle), TEXTS, early=True)["exit_logits"]
    if model_type != "gemma4_text":  # a shorter one is another model
        for early, expected in zip(found, exit_logits(checkpoint, layer, TEXTS), strict=True):
            np.testing.assert_allclose(early, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)
    whole = generate(bundle.path, PROMPTS, max_new_tokens=20, ignore_eos=True)
    drafted = generate(
        bundle.path, PROMPTS, max_new_tokens=20, ignore_eos=True, strategy="speculative", early_exit=True
    )
    assert [text.tokens for text in whole] == [text.tokens for text in drafted]
    proved(model_type, "generate", "traced", strategies=["speculative, early exit"])


@pytest.mark.proof
@pytest.mark.parametrize("model_type", few(["granite", "mixtral", "gemma2"], ["granite"]))
def test_saturated_tokens_skip_blocks_as_in_torch(model_type: str, tmp_path: Path, proved: Proved) -> None:
    checkpoint = save_family(tmp_path / "checkpoint", model_type, num_hidden_layers=3)
    assert export(str(save_early_exit(checkpoint, tmp_path / "exiting", "every")), tmp_path / "bundle").passed
    bundle = Bundle.open(tmp_path / "bundle")
    graph = load(bundle.model_path).graph
    branching = [node for node in graph if node.op_type == "If"]
    attends = "Softmax" if model_type == "gemma2" else "Attention"  # with a cap of the scores, by products
    assert len(branching) == 2 and sum(node.op_type == attends for node in graph) == 1
    assert sum(node.op_type == "TensorScatter" for node in graph) == 2 * 3
    feeds = chunk_feeds(bundle, np.random.default_rng(0).integers(0, 250, (3, 9)))
    feeds["exit_thresholds"] = np.array([-1.0, 0.7, 2.0], np.float32)
    names = [spec.name for spec in bundle.manifest.inputs]
    with open_engine(bundle.path) as engine:
        found = engine.run(feeds)
    import torch

    module = load_module(bundle.manifest.source)
    with torch.inference_mode():
        logits, blocks, *_ = (each.numpy() for each in module(*(torch.from_numpy(feeds[name]) for name in names)))
    assert found["blocks_run"].tolist() == blocks.tolist()
    assert set(blocks[0]) == {1} and set(blocks[2]) == {3}
    np.testing.assert_allclose(found["logits"], logits, atol=1e-4 * np.abs(logits).max(), rtol=0)
    proved(model_type, "generate", "traced", strategies=["calm"])
