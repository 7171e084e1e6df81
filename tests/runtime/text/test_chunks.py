"""The logits of a chunk equal those of a session, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.opening import open_engine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.text.chunks import load_chunks, read_tokens


@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_chunks_are_independent_sequences(
    family: str, make_decoder: Callable[..., tuple[Path, Path]], tmp_path: Path
) -> None:
    bundle = Bundle.open(make_decoder(family)[1])
    (tmp_path / "text.txt").write_text("Some running text, which is cut into chunks of equal lengths.")
    batches, used = load_chunks(bundle, tmp_path / "text.txt", 3, 2, "--data", length=17)
    assert [len(batch["input_ids"]) for batch in batches] == [2, 1]
    assert (used.samples, used.available) == (3, 3)
    ids = read_tokens(bundle, tmp_path / "text.txt", "--data")
    np.testing.assert_array_equal(np.concatenate([batch["input_ids"] for batch in batches]).ravel(), ids[:51])
    with open_engine(bundle.path) as engine, DecoderSession.open(bundle) as session:
        for batch in batches:
            logits = engine.run(batch)["logits"]
            for row, tokens in enumerate(batch["input_ids"]):
                session.rollback(0)
                alone = np.stack([session.step([[token]])[0, 0] for token in tokens])
                np.testing.assert_allclose(logits[row], alone, rtol=1e-3, atol=1e-3)


def test_chunks_are_limited_by_text_and_positions(tiny_decoder: Path, tmp_path: Path) -> None:
    bundle = Bundle.open(tiny_decoder)
    for text, shape in (("short", (1, 5)), ("x" * 200, (3, 64))):
        (tmp_path / "text.txt").write_text(text)
        batches, _ = load_chunks(bundle, tmp_path / "text.txt", 10, 10, "--data")
        assert batches[0]["input_ids"].shape == shape


def test_caches_share_their_memory(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("short")
    batches, _ = load_chunks(Bundle.open(tiny_decoder), tmp_path / "text.txt", 1, 1, "--data")
    caches = [array for name, array in batches[0].items() if name.startswith("past_")]
    assert len(caches) == 4 and all(cache is caches[0] for cache in caches)


def test_empty_file_is_rejected(tiny_decoder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" \n")
    with pytest.raises(UsageError, match=r"--data .*text.txt: has no text"):
        load_chunks(Bundle.open(tiny_decoder), tmp_path / "text.txt", 1, 1, "--data")
