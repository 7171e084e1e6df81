from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def decoder_with_draft(make_decoder: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """A random LLaMA of 128 positions and a smaller one, which drafts for it. Not to be changed."""
    large = make_decoder("llama", max_position_embeddings=128)[1]
    return large, make_decoder("llama", max_position_embeddings=128, num_hidden_layers=1)[1]
