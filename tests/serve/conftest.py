from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from served import Served, served


@pytest.fixture(scope="session")
def server(chat_models: tuple[Path, Path], trained_pair: tuple[Path, Path], tiny_bundle: Path) -> Iterator[Served]:
    """A server of the trained language model ("lm"), its draft model without a template, and a small random encoder."""
    limits = ("--rows", 4, "--max-sequence-tokens", 240, "--body-timeout", 1, "--max-body-bytes", 200_000)
    models = (f"lm={chat_models[1]}", f"plain={trained_pair[0]}", f"encoder={tiny_bundle}")
    with served(*models, *limits) as running:
        yield running


@pytest.fixture(scope="session")
def client(server: Served) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=120) as opened:
        yield opened


@pytest.fixture(scope="session")
def decoder_with_draft(make_decoder: Callable[..., tuple[Path, Path]]) -> tuple[Path, Path]:
    """A random LLaMA of 128 positions and a smaller one, which drafts for it. Not to be changed."""
    large = make_decoder("llama", max_position_embeddings=128)[1]
    return large, make_decoder("llama", max_position_embeddings=128, num_hidden_layers=1)[1]
