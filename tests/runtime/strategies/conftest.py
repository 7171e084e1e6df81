from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import save_drafts
from tiny_decoders import Change, Once, add_noise, altered

from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.networks.drafts import MATRICES


@pytest.fixture(scope="session")
def held_out(language_models: Path) -> str:
    """160,000 characters of text that was not trained on."""
    return (language_models / "held_out.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def prompts(held_out: str) -> list[str]:
    """Twenty prompts of different lengths."""
    return [held_out[start : start + 20 + start % 199] for start in range(0, 160_000, 8000)]


@pytest.fixture(scope="session")
def four_bit(trained_pair: tuple[Path, Path], once: Once) -> Path:
    """The target model with weights of four bits. Not to be changed."""
    return once("pair/four-bit", lambda path: compress(trained_pair[1], path, "rtn"))


@pytest.fixture(scope="session")
def trained_drafting(language_models: Path, once: Once) -> Callable[[str], Path]:
    """A function that returns the target model with drafts that are often right: kind -> bundle.

    The projections are 0, so that a pseudo state begins as the state of the token before it, and repeats it: which is
    what the model does, too, in lines and tables.
    """

    def save(path: Path, kind: str) -> None:
        from safetensors.numpy import load_file, save_file

        unfinished = path.with_suffix(".unfinished")
        save_drafts(language_models / "large", unfinished, kind, (1, 1, 2), width=256)
        matrices = {name: np.zeros_like(each) for name, each in load_file(unfinished / MATRICES).items()}
        save_file(matrices, unfinished / MATRICES)
        unfinished.rename(path)

    def make(kind: str) -> Path:
        checkpoint = once(f"drafting/{kind}", lambda path: save(path, kind))
        return once(f"drafting/{kind}-bundle", lambda path: export(str(checkpoint), path, check=False))

    return make


@pytest.fixture(scope="session")
def export_altered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that makes a bundle of a checkpoint, its weights changed in place: (checkpoint, change) -> bundle."""

    def make(checkpoint: Path, change: Change) -> Path:
        return altered(checkpoint, change, tmp_path_factory.mktemp("altered"))

    return make


def scale_logits(weights: dict[str, Any]) -> None:
    """Scale the logits to some hundreds."""
    weights["transformer.ln_f.weight"] *= 20


@pytest.fixture(scope="session")
def tiny_pair(make_decoder: Callable[..., tuple[Path, Path]], export_altered: Callable[..., Path]) -> tuple[Path, Path]:
    """A noisy copy of a random decoder, which often chooses the same tokens, and that decoder."""
    checkpoint, bundle = make_decoder("gpt2")
    return export_altered(checkpoint, add_noise), bundle


@pytest.fixture(scope="session")
def certain_pair(
    make_decoder: Callable[..., tuple[Path, Path]], export_altered: Callable[..., Path]
) -> tuple[Path, Path]:
    """The same tokens as `tiny_pair`, many with a probability that is exactly 1 in float32."""

    def noisy(weights: dict[str, Any]) -> None:
        add_noise(weights)
        scale_logits(weights)

    checkpoint, _ = make_decoder("gpt2")
    return export_altered(checkpoint, noisy), export_altered(checkpoint, scale_logits)
