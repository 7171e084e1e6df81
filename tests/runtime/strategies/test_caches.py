"""KV caches are truncated and overwritten in place, and never copied."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from covering import few

from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.sessions import key_value_cache as module
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.key_value_cache import KeyValueCache

METHODS: dict[str, dict[str, Any]] = {
    "bild": {"strategy": "bild", "fallback": 0.0, "rollback": 0.3, "max_draft": 6},
    "speculative": {"strategy": "speculative"},
    "ngram": {"strategy": "ngram", "min_draft_prob": 1e-3},
    "early exit": {"strategy": "bild", "early_exit": True, "fallback": 0.0, "rollback": 0.3, "max_draft": 6},
    "hidden transfer": {"strategy": "hidden-transfer", "min_draft_prob": 0.01},
    "medusa": {"strategy": "medusa", "min_draft_prob": 0.01},
}
# Hidden transfer writes its trees as medusa does.
methods = pytest.mark.parametrize("method", few(METHODS, [name for name in METHODS if name != "hidden transfer"]))
Open = Callable[..., TextGenerator]


@pytest.fixture
def opened(trained_pair: tuple[Path, Path], exiting: Path, trained_drafting: Callable[[str], Path]) -> Open:
    """A function that opens the bundles of one of the METHODS."""

    def opened(method: str, **options: Any) -> TextGenerator:
        strategy, large = METHODS[method]["strategy"], trained_pair[1]
        draft: dict[str, Any] = {}
        if method in ("bild", "speculative"):
            draft = {"draft": trained_pair[0]}
        elif method == "early exit":
            large = exiting
        elif method != "ngram":
            large = trained_drafting(strategy)
        return TextGenerator(large, **METHODS[method], **draft, ignore_eos=True, threads=1, **options)

    return opened


def sessions(generator: TextGenerator) -> list[DecoderSession]:
    return [session for session in (generator._draft, generator._model) if session is not None]


def addresses(generator: TextGenerator) -> list[int]:
    return [array.ctypes.data for session in sessions(generator) for array in session.cache.buffers.values()]


@pytest.mark.covering(1)
@methods
@pytest.mark.parametrize("batch", [1, 2])
def test_buffers_stay_in_place_between_growth_steps(
    method: str, batch: int, opened: Open, prompts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 tokens with many rollbacks, in a cache that grows by 64 slots."""
    monkeypatch.setattr(module, "CAPACITY_STEP", 64)
    grown: list[tuple[KeyValueCache, int]] = []
    resize = KeyValueCache.resize

    def counted(cache: KeyValueCache, capacity: int) -> None:
        grown.append((cache, capacity))
        resize(cache, capacity)

    monkeypatch.setattr(KeyValueCache, "resize", counted)
    with opened(method, max_new_tokens=200, batch=batch) as generator:
        seen: dict[tuple[int, ...], list[int]] = {}
        run = generator.write_batch([prompt[:20] for prompt in prompts[:batch]])
        for _ in run:
            capacities = tuple(session.capacity for session in sessions(generator))
            assert seen.setdefault(capacities, addresses(generator)) == addresses(generator)
        for session in sessions(generator):
            assert [capacity for cache, capacity in grown if cache is session.cache] == [64, 128, 192, 256]
        assert sum(text.result().rolled_back for text in run.texts) > 20


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak(generator: TextGenerator, prompt: str) -> int:
    """Peak bytes of arrays and objects while 30 tokens are generated into caches of sufficient capacity."""
    with generator:
        generator.write(prompt).whole()  # binds the buffers of every shape
        before = addresses(generator)
        tracemalloc.reset_peak()
        start, _ = tracemalloc.get_traced_memory()
        result = generator.write(prompt).whole()
        _, most = tracemalloc.get_traced_memory()
        assert addresses(generator) == before
    assert result.rolled_back > 0
    return most - start


# With bild the two models have the caches of speculative; ngram has those of the target model alone, as medusa.
@pytest.mark.parametrize("method", few(METHODS, ["speculative", "medusa"]))
def test_step_allocations_are_independent_of_cache_size(
    method: str, opened: Open, prompts: list[str], monkeypatch: pytest.MonkeyPatch, traced: None
) -> None:
    """The cache of the second run is 15 times as large; a copy of one layer's keys would be 4 MB of 5 more."""
    width = 256 * 4  # bytes of a token's keys in a layer of the target model
    found = []
    for capacity in (256, 3840):
        monkeypatch.setattr(module, "CAPACITY_STEP", capacity)
        found.append(peak(opened(method, max_new_tokens=30), prompts[0]))
    assert found[1] - found[0] < 0.1 * (3840 - 256) * width
    assert found[1] < 0.5 * 3840 * width


def test_fixture_detects_array_allocations(traced: None) -> None:
    start, _ = tracemalloc.get_traced_memory()
    array = np.zeros(1_000_000)
    assert tracemalloc.get_traced_memory()[0] - start >= array.nbytes
