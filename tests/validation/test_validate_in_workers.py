"""`validate` measures the same numbers in workers as in this process, to the last bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from speech_bundles import RECORDINGS
from tiny_encoders import ANSWERS, TAGS, save_encoder
from tiny_whispers import save_whisper

from intaglio.errors import IntaglioError, UsageError
from intaglio.executors.executor import INLINE, Executor, InOrder
from intaglio.executors.process_pool import ProcessPool
from intaglio.exporters import export
from intaglio.graph_passes import compress
from intaglio.samples.sentences import sentences
from intaglio.validation import validate
from intaglio.validation.scores import perplexity

Make = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    with ProcessPool(2) as opened:
        yield opened


@pytest.fixture(scope="module")
def decoders(make_decoder: Make) -> list[Path]:
    """Two decoders with the same tokens, neither of them near uniform probabilities."""
    return [make_decoder("gpt2", n_layer=layers, initializer_range=0.01)[1] for layers in (1, 2)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(sentences()[:12]), encoding="utf-8")
    return path


def same(pool: Executor, bundle: Path, folder: Path, **options: Any) -> dict[str, Any]:
    """Validate in this process and in workers; return the result, which is the same, as is its report."""
    results = []
    for executor in (INLINE, pool):
        found = validate(bundle, report=folder, executor=executor, **options)
        report = json.loads(Path(found.report).with_suffix(".json").read_text())
        assert (found.real_time_factor is None) == (executor is pool and "wer" in options)
        found.real_time_factor = report["written"] = None  # times differ
        for errors in (report["word_errors"] or {}).values():
            if isinstance(errors, dict):
                errors["real_time_factor"] = None
        results.append((msgspec.to_builtins(found), report))
    assert results[1] == results[0]
    return results[0][0]  # type: ignore[no-any-return]


def test_perplexity_has_the_same_bits(pool: Executor, decoders: list[Path], text: Path, tmp_path: Path) -> None:
    bundle, other = decoders
    found = same(pool, bundle, tmp_path, perplexity=text, against=other, context=24)
    assert found["kl_divergence"] > 0
    assert found["perplexity"] > 1


@pytest.mark.proof  # another session in each process
def test_perplexity_of_pairs_has_the_same_bits(pool: Executor, make_encoder_decoder: Make, tmp_path: Path) -> None:
    _, bundle = make_encoder_decoder("t5", d_model=64, d_ff=128)
    compress(bundle, tmp_path / "small", "int8-weights")
    pairs = tmp_path / "pairs.jsonl"
    lines = [json.dumps({"prompt": each, "reference": each[:20]}) + "\n" for each in sentences()[:6]]
    pairs.write_text("".join(lines), encoding="utf-8")
    assert same(pool, tmp_path / "small", tmp_path, perplexity=pairs, against=bundle)["kl_divergence"] > 0


@pytest.mark.parametrize("against", ["reference", "bundle"])
def test_outputs_have_the_same_bits(
    against: str, pool: Executor, tiny_bundle: Path, tiny_int8_bundle: Path, tmp_path: Path
) -> None:
    other = "reference" if against == "reference" else tiny_bundle
    found = same(pool, tiny_int8_bundle, tmp_path, against=other, samples=12, batch_size=4, bisect=True)
    assert bool(found["measures"]) == (against == "bundle")


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["electra-tags", "electra-answers", "gpt2", "recogniser"])
def test_measures_of_tasks_have_the_same_bits(
    kind: str, pool: Executor, decoders: list[Path], recogniser: Path, tmp_path: Path
) -> None:
    bundle = {"gpt2": decoders[0], "recogniser": recogniser}.get(kind, tmp_path / "bundle")
    if kind.startswith("electra"):
        head = TAGS if kind == "electra-tags" else ANSWERS
        export(str(save_encoder(tmp_path / "checkpoint", "electra", head)), bundle)
    compress(bundle, tmp_path / "small", recipe="int8-weights")
    assert same(pool, tmp_path / "small", tmp_path, against=bundle, samples=12, batch_size=4)["measures"]


def test_source_checkpoint_is_refused_with_workers(pool: Executor, tiny_bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"--executor processes:2: workers run bundles, not .* in PyTorch\. Add"):
        validate(tiny_bundle, executor=pool)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A list of recordings with texts that are not theirs."""
    names = [f"sentence-{number}.flac" for number in (2, 5, 2)]
    for name in names:
        shutil.copy(RECORDINGS / name, tmp_path / name)
    path = tmp_path / "list.tsv"
    path.write_text("".join(f"{name}\tthe quick brown fox\n" for name in names), encoding="utf-8")
    return path


def test_word_errors_are_the_same_without_a_real_time_factor(
    pool: Executor, recogniser: Path, recordings: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(recogniser, tmp_path / "other"))
    found = same(pool, recogniser, tmp_path, wer=recordings, against=other, beam=4)
    assert found["wer"] > 0


@pytest.mark.proof
def test_word_errors_of_an_encoder_decoder_are_the_same(pool: Executor, recordings: Path, tmp_path: Path) -> None:
    export(str(save_whisper(tmp_path / "checkpoint")), tmp_path / "bundle")
    assert same(pool, tmp_path / "bundle", tmp_path, wer=recordings)["wer"] > 0


def test_damaged_recording_is_the_same_error(
    pool: Executor, recogniser: Path, recordings: Path, tmp_path: Path
) -> None:
    (tmp_path / "sentence-5.flac").write_bytes(b"no audio")
    messages = []
    for executor in (INLINE, pool):
        with pytest.raises(UsageError) as caught:
            validate(recogniser, wer=recordings, report=tmp_path, executor=executor)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "sentence-5.flac" in messages[0]


@pytest.mark.proof  # the pool's own tests kill workers, too
def test_killed_worker_changes_no_bit(
    pool: ProcessPool, decoders: list[Path], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []

    def kill_after_first(scores: Iterable[Any], *_: Any) -> Iterator[Any]:
        for number, each in enumerate(scores):
            if number == 1 and isinstance(scores, InOrder):
                killed.append(next(iter(pool._pool._processes)))
                os.kill(killed[0], signal.SIGKILL)
            yield each

    monkeypatch.setattr(perplexity, "track", kill_after_first)
    same(pool, decoders[0], tmp_path, perplexity=text, context=16, stride=2)
    assert killed


@pytest.mark.parametrize("options", [{"cache_bits": 5}, {"context": 65}])
def test_errors_are_those_of_this_process(
    options: dict[str, Any], pool: Executor, decoders: list[Path], text: Path
) -> None:
    messages = []
    for executor in (INLINE, pool):
        with pytest.raises(IntaglioError) as caught:
            validate(decoders[0], perplexity=text, executor=executor, **options)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]


def test_other_targets_are_refused_with_workers(pool: Executor, decoders: list[Path], text: Path) -> None:
    with pytest.raises(UsageError, match=r"--executor processes:2: workers run ort-cpu or reference, got .* ort-cuda"):
        validate(decoders[0], perplexity=text, target="ort-cuda", executor=pool)
