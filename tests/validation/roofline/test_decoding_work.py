"""The work of texts: operations and bytes of their forward passes, and of those of the target model alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from drafts import save_drafts

from intaglio.bundle.bundle import Bundle
from intaglio.bundle.model_file import load
from intaglio.exporters import export
from intaglio.runtime.generation.generate import generate
from intaglio.validation.roofline.decoding_work import compared_work, decoding_work
from intaglio.validation.roofline.work import work


def test_work_of_a_text_is_the_sum_of_its_forward_passes(trained_pair: tuple[Path, Path]) -> None:
    _, target = trained_pair
    (result,) = generate(target, "The import statement", max_new_tokens=1)
    model, tokens = load(Bundle.open(target).model_path), result.prompt_tokens
    found = decoding_work(Bundle.open(target), None)([result])
    lengths = {"batch": 1, "tokens": tokens, "positions_wanted": tokens}
    short, long = (work(model, {**lengths, "capacity": tokens + more}) for more in (0, 1))
    assert found.operations == pytest.approx((short.operations + long.operations) / 2)
    assert found.bytes == pytest.approx((short.bytes + long.bytes) / 2)


def test_work_of_an_early_exit_counts_its_blocks(exiting: Path, trained_pair: tuple[Path, Path]) -> None:
    _, target = trained_pair
    bundle = Bundle.open(exiting)
    options: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True}
    plain, whole = (next(generate(path, "The import statement", **options)) for path in (target, exiting))
    (bild,) = generate(exiting, "The import statement", strategy="bild", early_exit=True, fallback=0.0, **options)
    assert decoding_work(bundle, None)([whole]) == decoding_work(Bundle.open(target), None)([plain])
    small, large_calls = bild.calls.small, bild.calls.large
    table = 1536 * 256 * 2  # bytes of the head's float16 matrix, which both use; a block is 12 · 256²
    read = decoding_work(bundle, None)([bild]).bytes * 8
    blocks = 12 * 256 * 256 * 2
    assert read == pytest.approx(small * (blocks + table) + large_calls * (3 * blocks + table), rel=0.05)


@pytest.mark.parametrize("strategy", ["greedy", "ngram", "speculative", "bild"])
def test_work_is_relative_to_the_target_model_alone(strategy: str, trained_pair: tuple[Path, Path]) -> None:
    small, target = trained_pair
    draft = small if strategy in ("speculative", "bild") else None
    prompts = ["The import statement", "Return the"]
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    plain = list(generate(target, prompts, **options))
    trusted = {"fallback": 0.0, "rollback": math.inf} if strategy == "bild" else {}
    found = list(generate(target, prompts, strategy=strategy, draft=draft, **options, **trusted))
    compared = compared_work(Bundle.open(target), Bundle.open(draft) if draft else None)(found)
    assert compared.alone == decoding_work(Bundle.open(target), None)(plain)
    if strategy == "greedy":
        assert compared.run == compared.alone
    else:
        assert compared.run.bytes < compared.alone.bytes
        assert compared.run.intensity > compared.alone.intensity


@pytest.mark.parametrize("kind", ["hidden-transfer", "medusa"])
def test_self_drafts_count_as_work(kind: str, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    """Each token that is drafted after, and each of its drafts, adds the same work to a forward pass."""
    checkpoint, plain = make_decoder("llama")
    export(str(save_drafts(checkpoint, tmp_path / "checkpoint", kind)), tmp_path / "bundle", check=False)
    bundle = Bundle.open(tmp_path / "bundle")
    (result,) = generate(tmp_path / "bundle", "Hello", strategy=kind, max_new_tokens=8, ignore_eos=True)
    assert result.calls.large <= result.origins <= 2 * result.calls.large
    operations = [
        decoding_work(bundle, None)([msgspec.structs.replace(result, origins=origins)]).operations
        for origins in (0, 10, 20)
    ]
    assert operations[1] - operations[0] == pytest.approx(operations[2] - operations[1])
    assert operations[1] > operations[0]
    (alone,) = generate(plain, "Hello", max_new_tokens=8, ignore_eos=True)
    without = compared_work(bundle, None)([result]).alone
    assert without.operations == pytest.approx(decoding_work(Bundle.open(plain), None)([alone]).operations)


def test_encoder_decoder_work_grows_with_the_source(
    make_encoder_decoder: Callable[..., tuple[Path, Path]],
) -> None:
    bundle = Bundle.open(make_encoder_decoder("t5")[1])
    short, long = generate(bundle.path, ["ab", "ab" * 20], max_new_tokens=1)
    few, many = (decoding_work(bundle, None)([result]) for result in (short, long))
    assert many.operations > 5 * few.operations
    assert many.bytes > few.bytes
