"""Pruning while fine-tuning: masks are kept, schedules reach their fraction, and checkpoints are exportable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tiny_decoders import FAMILIES, save_decoder

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.samples.sentences import sentences
from intaglio.training import prune
from intaglio.training.language_models.schedule import SCHEDULES, fraction_at

WIDTHS: dict[str, dict[str, Any]] = {
    family: {{"gpt2": "n_inner", "opt": "ffn_dim"}.get(family, "intermediate_size"): 64, "vocab_size": 257}
    for family in FAMILIES
}
SHORT: dict[str, Any] = {"stages": 2, "steps": 3, "batch_size": 2, "max_tokens": 32}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(sentences()[:20]))
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tmp_path_factory.mktemp("gpt2") / "checkpoint", "gpt2", **WIDTHS["gpt2"])


@given(st.sampled_from(SCHEDULES), st.integers(1, 50), st.integers(1, 9), st.floats(0.01, 0.99))
def test_schedules_rise_monotonically_from_zero_to_the_fraction(
    schedule: Any, steps: int, stages: int, fraction: float
) -> None:
    parts = [fraction_at(schedule, done, steps, stages, fraction) for done in range(steps * (stages + 1))]
    assert parts[:steps] == [0.0] * steps
    assert parts == sorted(parts) and parts[-1] == pytest.approx(fraction)


def test_published_schedules_start_at_a_tenth_or_step_by_a_thousandth() -> None:
    separate = [fraction_at("separate", done, 100, 9, 0.9) for done in range(1000)]
    assert [round(separate[done], 6) for done in (99, 100, 199, 200, 999)] == [0, 0.1, 0.1, 0.2, 0.9]
    linear = [fraction_at("linear", done, 100, 9, 0.9) for done in range(1000)]
    assert [round(linear[done], 6) for done in (99, 100, 101, 199, 999)] == [0, 0.001, 0.002, 0.1, 0.9]
    cubic = [fraction_at("cubic", done, 100, 9, 0.9) for done in range(1000)]
    assert cubic[300] > linear[300] and cubic[-1] - cubic[-2] < 1e-6


@pytest.mark.parametrize("schedule", ["separate", "linear"])
def test_exactly_the_fraction_of_each_matrix_is_zero(
    schedule: Any, checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    result = prune(checkpoint, tmp_path / "made", text, fraction=0.4, schedule=schedule, **SHORT)
    weights = load_file(tmp_path / "made" / "model.safetensors")
    matrices = {name: array for name, array in weights.items() if array.ndim == 2 and ".h." in name}
    assert len(matrices) == 8
    for name, array in matrices.items():
        assert np.count_nonzero(array == 0) == round(0.4 * array.size), name
    assert result.zeros == sum(np.count_nonzero(array == 0) for array in matrices.values())
    assert not (weights["transformer.wte.weight"] == 0).any()
    assert [round(stage.fraction, 6) for stage in result.stages] == [0, 0.2, 0.4]
    assert result.parameters == result.parameters_before


@pytest.mark.parametrize("family", few(WIDTHS, ["qwen3"]))
def test_rows_are_removed_and_the_checkpoint_is_exportable(family: str, text: Path, tmp_path: Path) -> None:
    source = save_decoder(tmp_path / "source", family, **WIDTHS[family])
    result = prune(source, tmp_path / "made", text, fraction=0.5, by="rows", dtype="float16", **SHORT)
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config[next(iter(WIDTHS[family]))] == 32
    removed = 32 * (32 + 32 + 1) if family in ("gpt2", "opt") else 32 * 3 * 32
    assert result.parameters_before - result.parameters == 2 * removed
    assert {array.dtype.name for array in load_file(tmp_path / "made" / "model.safetensors").values()} == {"float16"}
    assert export(str(tmp_path / "made"), tmp_path / "bundle").passed


def test_removing_rows_equals_masking_them(checkpoint: Path) -> None:
    import torch

    from intaglio.training.language_models.checkpoint import open_network
    from intaglio.training.language_models.masks import RowMasks

    network, stored = open_network(checkpoint)
    assert stored == "float32"
    network.eval()
    masks = RowMasks(network, multiple=4)
    masks.tighten(0.3)
    masks.tighten(0.6)
    masks.apply()
    smaller = masks.removed(network)
    assert masks.kept(0.6) == 24 and smaller.transformer.h[1].mlp.c_fc.weight.shape == (32, 24)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        torch.testing.assert_close(smaller(ids).logits, network(ids).logits, rtol=1e-4, atol=1e-4)


def test_row_pruning_of_unknown_networks_is_refused() -> None:
    import transformers

    from intaglio.training.language_models.masks import RowMasks

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    network = transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(vocab_size=50, **sizes))
    with pytest.raises(SourceError, match=r"rows of 'gpt_neox': expected .* mlp\.c_fc/mlp\.c_proj or"):
        RowMasks(network)


def test_masks_never_shrink(checkpoint: Path) -> None:
    import torch

    from intaglio.training.language_models.checkpoint import open_network
    from intaglio.training.language_models.masks import MagnitudeMasks

    network, _ = open_network(checkpoint)
    masks = MagnitudeMasks(network)
    masks.tighten(0.3)
    masks.apply()
    weight = network.transformer.h[0].attn.c_attn.weight
    first = weight == 0
    with torch.no_grad():
        weight[first] = 5.0  # as if the optimiser had changed them
    masks.tighten(0.3)
    masks.tighten(0.5)
    masks.apply()
    assert (weight[first] == 0).all() and int((weight == 0).sum()) == round(0.5 * weight.numel())


def test_fine_tuning_lowers_the_loss(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    options = SHORT | {"steps": 12, "learning_rate": 3e-3}
    result = prune(checkpoint, tmp_path / "made", text, fraction=0.2, **options)
    assert result.stages[-1].loss < result.loss_before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fraction": 1.0}, "fraction 1.0: expected more than 0 and less than 1"),
        ({"by": "heads"}, "by 'heads': expected one of magnitude, rows"),
        ({"schedule": "both"}, "schedule 'both': expected one of separate, linear, cubic"),
        ({"steps": 0}, "steps 0: expected at least 1"),
        ({"max_tokens": 1}, "max tokens 1: expected at least 2"),
        ({"learning_rate": float("nan")}, "learning rate nan: expected a positive number"),
    ],
)
def test_options_out_of_range_are_refused(
    options: dict[str, Any], message: str, checkpoint: Path, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        prune(checkpoint, tmp_path / "made", text, **options)


def test_invalid_sources_texts_and_outputs_print_one_line(checkpoint: Path, text: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("two words")
    with pytest.raises(UsageError, match="9 tokens, expected at least two windows of 64"):
        prune(checkpoint, tmp_path / "made", tmp_path / "words.txt")
    with pytest.raises(SourceError, match=r"no readable config\.json"):
        prune(tmp_path, tmp_path / "made", text)
    with pytest.raises(UsageError, match="is the source itself, which would be overwritten"):
        prune(checkpoint, checkpoint, text, force=True)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text((checkpoint / "config.json").read_text())
    with pytest.raises(SourceError, match="transformers cannot open it as a causal language model") as raised:
        prune(tmp_path / "broken", tmp_path / "made", text)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_command_line_prunes_a_checkpoint(
    checkpoint: Path, text: Path, tmp_path: Path, intaglio: Callable[..., Any]
) -> None:
    arguments = ("--data", text, "--stages", 1, "--steps", 1, "--max-tokens", 32)
    code, out, err = intaglio("train", "prune", checkpoint, "-o", tmp_path / "made", *arguments, "--json")
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["by"] == "magnitude" and len(result["stages"]) == 2 and out.count("\n") == 1
    code, out, _ = intaglio("train", "prune", checkpoint, "-o", tmp_path / "rows", *arguments, "--by", "rows")
    assert code == 0 and "parameters" in out
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == sorted(
        path.name for path in checkpoint.iterdir()
    )
