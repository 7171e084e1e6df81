"""Every verb reads the hashes of a bundle's files once: an opened bundle is passed on, not its path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import intaglio
from intaglio.bundle import manifest_reading
from intaglio.bundle.bundle import MODEL, Bundle
from intaglio.serve.opening import open_models
from intaglio.serve.options import ServerOptions


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each file was hashed to verify it."""
    counts: Counter[Path] = Counter()
    sha256 = manifest_reading.sha256

    def counting(path: Path) -> str:
        counts[path] += 1
        return sha256(path)

    monkeypatch.setattr(manifest_reading, "sha256", counting)
    return counts


def generate(bundle: Path) -> None:
    next(intaglio.generate(bundle, "a", max_new_tokens=1))


def perplexity(bundle: Path, text: Path) -> None:
    intaglio.validate(bundle, perplexity=text, report=text.parent / "report")


def serve(bundle: Path) -> None:
    for model in open_models([bundle], ServerOptions()).by_name.values():
        model.worker.close()


ENCODER_VERBS: dict[str, Callable[[Path], object]] = {
    "run": lambda bundle: list(intaglio.run(bundle, ["a", "b"])),
    "similarity": lambda bundle: intaglio.similarity(bundle, ["a", "b"]),
    "validate": lambda bundle: intaglio.validate(bundle, against="reference", samples=1),
    "inspect": intaglio.inspect,
    "serve": serve,
}


@pytest.mark.parametrize("verb", ENCODER_VERBS)
def test_encoder_is_hashed_once(verb: str, tiny_bundle_copy: Path, hashed: Counter[Path]) -> None:
    ENCODER_VERBS[verb](tiny_bundle_copy)
    assert hashed[tiny_bundle_copy / MODEL] == 1
    assert set(hashed.values()) == {1}


@pytest.mark.parametrize("verb", [generate, serve])
def test_decoder_is_hashed_once(verb: Callable[[Path], None], tiny_decoder: Path, hashed: Counter[Path]) -> None:
    verb(tiny_decoder)
    assert hashed[tiny_decoder / MODEL] == 1
    assert set(hashed.values()) == {1}


def test_opened_bundle_is_not_read_again(tiny_bundle: Path, hashed: Counter[Path]) -> None:
    opened = Bundle.open(tiny_bundle)
    hashed.clear()
    assert Bundle.open(opened) is opened
    assert not hashed
