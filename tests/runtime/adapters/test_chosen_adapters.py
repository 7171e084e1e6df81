"""Each request has the text of its adapter, also among others, with a shared prompt, and with drafts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import save_adapter, unmerged_by_peft
from scheduling import RANDOM, request, run
from tiny_decoders import save_decoder

from intaglio.errors import SourceError, UsageError
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.runtime.generation.generate import TextGenerator
from intaglio.runtime.strategies import Speculative

Once = Callable[[str, Callable[[Path], object]], Path]
PROMPT = RANDOM[:24]
NAMES = (None, "all", "qv")


@pytest.fixture(scope="module")
def checkpoint(once: Once) -> Path:
    return once("side-paths/llama", lambda path: save_decoder(path, "llama", tie_word_embeddings=False))


@pytest.fixture(scope="module")
def bundle(once: Once, checkpoint: Path) -> Path:
    return once("side-paths/bundle", lambda path: export(str(checkpoint), path, check=False))


@pytest.fixture(scope="module")
def adapters(once: Once, checkpoint: Path) -> list[str]:
    options: dict[str, Any] = {"all": {"target_modules": "all-linear", "r": 2}, "qv": {}}
    folders = {
        name: once(f"side-paths/chosen-{name}", lambda path, name=name: save_adapter(checkpoint, path, **options[name]))
        for name in options
    }
    return [f"{name}={folder}" for name, folder in folders.items()]


def texts(generator: TextGenerator, names: tuple[str | None, ...], **options: Any) -> list[list[int]]:
    """The tokens after `PROMPT` with each adapter, at the same time as far as there are rows."""
    asked = [replace(request(PROMPT, **options), adapter=name) for name in names]
    states = [generator.scheduler.submit(each) for each in asked]
    run(generator.scheduler)
    return [state.result().tokens for state in states]


def greedy_by_peft(checkpoint: Path, adapter: str) -> list[int]:
    import torch

    model, tokens = unmerged_by_peft(checkpoint, Path(adapter.partition("=")[2])), list(PROMPT)
    with torch.no_grad():
        for _ in range(8):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def test_mixed_batch_has_the_texts_of_peft(bundle: Path, checkpoint: Path, adapters: list[str]) -> None:
    with TextGenerator(bundle, adapter=adapters, batch=3) as generator:
        found = texts(generator, NAMES)
    assert found[1:] == [greedy_by_peft(checkpoint, adapter) for adapter in adapters]
    assert len({tuple(each) for each in found}) == 3


@pytest.mark.parametrize("quantised", [False, True])
def test_request_alone_has_the_text_of_the_mixed_batch(
    quantised: bool, bundle: Path, adapters: list[str], tmp_path: Path
) -> None:
    if quantised:
        compress(bundle, tmp_path / "bundle", recipe="rtn", bits=8)
    with TextGenerator(tmp_path / "bundle" if quantised else bundle, adapter=adapters, batch=4) as generator:
        together = texts(generator, (*NAMES, "all"))
        assert [texts(generator, (name,))[0] for name in NAMES] == together[:3]
    assert together[3] == together[1]


def test_prefix_of_another_adapter_is_not_reused(bundle: Path, adapters: list[str]) -> None:
    with TextGenerator(bundle, adapter=adapters, batch=2) as generator:
        states = []
        for name in ("all", None, "all", "qv", "qv"):  # one after the other, in rows that others had
            states.append(generator.scheduler.submit(request(PROMPT, adapter=name)))
            run(generator.scheduler)
        expected = [texts(generator, (name,), reuse_prefix=False)[0] for name in ("all", None, "all", "qv", "qv")]
    assert [state.result().reused_tokens for state in states] == [0, 0, 23, 0, 23]
    assert [state.result().tokens for state in states] == expected


def test_prefix_of_another_scale_is_not_reused(bundle: Path, adapters: list[str]) -> None:
    scales = (1.0, 0.5, 0.5, 1.0)
    with TextGenerator(bundle, adapter=adapters, batch=2) as generator:
        states = []
        for scale in scales:
            states.append(generator.scheduler.submit(request(PROMPT, adapter="all", adapter_scale=scale)))
            run(generator.scheduler)
        expected = [texts(generator, ("all",), adapter_scale=each, reuse_prefix=False)[0] for each in scales]
    assert [state.result().reused_tokens for state in states] == [0, 0, 23, 23]
    assert [state.result().tokens for state in states] == expected
    assert expected[0] != expected[1]


def test_rows_that_prefill_at_a_time_share_with_their_own_adapter_only(bundle: Path, adapters: list[str]) -> None:
    with TextGenerator(bundle, adapter=adapters, batch=4) as generator:
        asked = [request(PROMPT, adapter=name) for name in ("all", "qv", "all", None)]
        states = [generator.scheduler.submit(each) for each in asked]
        run(generator.scheduler)
    assert [state.result().reused_tokens for state in states] == [0, 0, 23, 0]


def test_drafts_of_a_model_without_adapters_change_no_text(bundle: Path, adapters: list[str]) -> None:
    with TextGenerator(bundle, adapter=adapters, draft=bundle, strategy="speculative", batch=3) as generator:
        drafted = texts(generator, NAMES, strategy=Speculative())
        assert drafted == texts(generator, NAMES)


def test_single_adapter_is_used_for_each_text(bundle: Path, adapters: list[str]) -> None:
    prompt = bytes(range(97, 113)).decode()
    with TextGenerator(bundle, adapter=adapters[:1], max_new_tokens=8) as generator:
        assert generator.chosen_adapter == "all"
        found = generator.write(prompt).whole().tokens
        generator.chosen_adapter = None
        without = generator.write(prompt).whole().tokens
    with TextGenerator(bundle, max_new_tokens=8) as generator:
        assert generator.write(prompt).whole().tokens == without != found


def test_unknown_adapter_fails_its_request_alone(bundle: Path, adapters: list[str]) -> None:
    with TextGenerator(bundle, adapter=adapters, batch=2) as generator:
        states = [generator.scheduler.submit(request(PROMPT, adapter=name)) for name in ("sql", "qv")]
        run(generator.scheduler)
        assert isinstance(states[0].error, UsageError)
        assert str(states[0].error) == "adapter 'sql': expected one of all, qv."
        assert len(states[1].result().tokens) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"early_exit": True}, "--early-exit and --adapter are both given"),
        ({"target": "tensorrt"}, "target tensorrt runs built engines only"),
    ],
)
def test_engines_without_side_paths_are_refused(
    options: dict[str, Any], message: str, bundle: Path, adapters: list[str]
) -> None:
    with pytest.raises(UsageError, match=message):
        TextGenerator(bundle, adapter=adapters, **options)


def test_encoder_decoders_are_refused(
    make_encoder_decoder: Callable[..., tuple[Path, Path]], adapters: list[str]
) -> None:
    with pytest.raises(UsageError, match="is an encoder-decoder, expected a decoder"):
        TextGenerator(make_encoder_decoder("t5")[1], adapter=adapters)


def test_adapter_that_is_merged_already_is_refused(checkpoint: Path, adapters: list[str], tmp_path: Path) -> None:
    merged, other = (each.partition("=")[2] for each in adapters)
    export(str(checkpoint), tmp_path / "bundle", adapter=merged, check=False)
    with pytest.raises(UsageError, match="it is merged into the weights of the bundle already"):
        TextGenerator(tmp_path / "bundle", adapter=adapters)
    TextGenerator(tmp_path / "bundle", adapter=[other]).close()


def test_adapter_of_another_structure_is_refused(
    make_decoder: Callable[..., tuple[Path, Path]], adapters: list[str]
) -> None:
    with pytest.raises(SourceError, match=r"no products with the weight of model\.layers\.0\."):
        TextGenerator(make_decoder("gpt2")[1], adapter=adapters)


def test_command_writes_the_text_of_its_adapter(
    intaglio: Callable[..., tuple[int, str, str]], bundle: Path, adapters: list[str]
) -> None:
    given = ("generate", bundle, "hello", "-n", 8, "--ignore-eos", "--json")
    code, found, _ = intaglio(*given, "--adapter", adapters[1])
    assert code == 0
    with TextGenerator(bundle, adapter=adapters, max_new_tokens=8, ignore_eos=True) as generator:
        generator.chosen_adapter = "qv"
        assert json.loads(found)["tokens"] == generator.write("hello").whole().tokens
    code, _, message = intaglio(*given, "--adapter", adapters[0], "--adapter", adapters[1])
    assert (code, message) == (
        2,
        "intaglio: --adapter is given 2 times, expected once. To choose one for each request, use: intaglio serve\n",
    )
    assert intaglio(*given, "--adapter", adapters[0], "--beams", 2)[0] == 2
