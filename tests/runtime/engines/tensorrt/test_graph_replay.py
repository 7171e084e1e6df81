"""CUDA graphs of a decoder's steps, on the stand-in: a graph runs only on the context that it was captured from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cuda_ledger import gpu
from devices import built

from intaglio.bundle.bundle import Bundle
from intaglio.runtime.engines.tensorrt.graph_replay import AFTER, DISABLED, GraphReplay
from intaglio.runtime.generation.generate import TextGenerator

PROMPT = "One day"
TOKENS = 24
MakeDecoder = Callable[..., tuple[Path, Path]]


def written(target: str, bundle: Path, prompt: str = PROMPT) -> list[int]:
    with TextGenerator(bundle, target=target, max_new_tokens=TOKENS, ignore_eos=True) as generator:
        return [*generator.write(prompt).whole().tokens]


@pytest.fixture
def bundle(make_decoder: MakeDecoder, tmp_path: Path) -> Path:
    return built(make_decoder("llama", max_position_embeddings=1024)[1], tmp_path, 64, "tensorrt")


def test_steps_of_one_token_are_replayed(make_decoder: MakeDecoder, bundle: Path) -> None:
    expected = written("ort-cpu", make_decoder("llama", max_position_embeddings=1024)[1])
    with gpu() as ledger:
        assert written("tensorrt", bundle) == expected
        assert ledger.runtime.replays == len(ledger.steps) - 1 - AFTER  # all but the prompt, and the first two steps
        assert not ledger.runtime.graphs and not ledger.allocated


def test_a_second_text_captures_its_own(make_decoder: MakeDecoder, bundle: Path) -> None:
    with gpu() as ledger, TextGenerator(bundle, target="tensorrt", max_new_tokens=8, ignore_eos=True) as generator:
        texts = [generator.write(prompt).whole().text for prompt in (PROMPT, "The cat sat on the", PROMPT)]
        assert texts[0] == texts[2]
        assert len(ledger.runtime.graphs) == 1
        assert ledger.runtime.replays == 3 * (8 - 1 - AFTER)


def test_what_cannot_be_captured_is_enqueued(bundle: Path) -> None:
    with gpu() as ledger:
        expected = written("tensorrt", bundle)
        ledger.runtime.refuses_capture, ledger.runtime.replays = True, 0
        assert written("tensorrt", bundle) == expected
        assert ledger.runtime.replays == 0


def test_graphs_can_be_left_out(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISABLED, "0")
    with gpu() as ledger:
        assert len(written("tensorrt", bundle)) == TOKENS
        assert ledger.runtime.replays == 0


class Memory:
    """Counts what `GraphReplay` asks for."""

    def __init__(self, captures: bool = True) -> None:
        self.captures = captures
        self.calls: list[str] = []

    def captured(self, enqueue: Callable[[], bool]) -> Any:
        self.calls.append("capture")
        return "graph" if enqueue() and self.captures else None

    def replay(self, graph: str) -> None:
        self.calls.append("replay")

    def drop(self, graph: str) -> None:
        self.calls.append("drop")


def test_a_change_drops_the_graph_and_a_failed_capture_is_not_repeated() -> None:
    for captures, expected in (
        (True, ["capture", "replay", "replay", "drop", "capture", "replay"]),
        (False, ["capture"]),
    ):
        memory = Memory(captures)
        replay = GraphReplay(memory, lambda: True)  # type: ignore[arg-type]
        for _ in range(AFTER + 2):
            assert replay.run()
        replay.changed()
        replay.changed()
        for _ in range(AFTER + 1):
            assert replay.run()
        assert memory.calls == expected


def test_work_that_fails_is_told() -> None:
    assert not GraphReplay(Memory(), lambda: False).run()  # type: ignore[arg-type]


def phase(bundle: Bundle, most: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """An engine's profile for up to `most` tokens, as TensorRT tells it."""
    (record,) = bundle.manifest.engines
    found = {}
    for spec in bundle.manifest.inputs:
        shapes = record.profiles[spec.name]
        place = spec.shape.index("tokens") if "tokens" in spec.shape else None
        largest = [most if axis == place else length for axis, length in enumerate(shapes["max"])]
        found[spec.name] = (tuple(shapes["min"]), tuple(shapes["opt"]), tuple(largest))
    return found


def test_prompts_and_steps_have_contexts_of_their_own(make_decoder: MakeDecoder, bundle: Path) -> None:
    """Then no prompt changes the context of the steps, whose graph serves the next text, too."""
    opened = Bundle.open(bundle)
    prompt = "Once upon a time, there was"
    expected = written("ort-cpu", make_decoder("llama", max_position_embeddings=1024)[1], prompt)
    with gpu() as ledger:
        ledger.runtime.profiles = [phase(opened, 4), phase(opened, 64)]
        with TextGenerator(bundle, target="tensorrt", max_new_tokens=TOKENS, ignore_eos=True) as generator:
            for _ in range(3):
                assert [*generator.write(prompt).whole().tokens] == expected
            assert len(ledger.runtime.graphs) == 1
            assert ledger.runtime.replays == len(ledger.steps) - 1 - AFTER >= 3 * (TOKENS - 1) - AFTER
        assert not ledger.allocated
