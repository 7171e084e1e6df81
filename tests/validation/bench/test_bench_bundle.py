"""bench of bundles: each in its own process, on real models, consistent with the other verbs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from covering import few

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError, EngineError, UsageError
from intaglio.runtime.text.tokenizer import Tokenizer, read_backend
from intaglio.validation.bench.bench import bench
from intaglio.validation.bench.bundle_side import BundleSide
from intaglio.validation.bench.load import Load, Timing
from intaglio.validation.bench.prompts import of_tokens
from intaglio.validation.bench.results import percentiles

Run = Callable[..., tuple[int, str, str]]
FEW = {"requests": 3, "rounds": 2, "max_new_tokens": 6}


@pytest.mark.proof
def test_decoder_is_compared_with_a_baseline(trained_pair: tuple[Path, Path], intaglio: Run, tmp_path: Path) -> None:
    small, large = trained_pair
    plot = tmp_path / "plot.svg"
    arguments = ["--requests", 4, "--rounds", 2, "-n", 8, "--prompt-tokens", 32, "--prompt-tokens", 100]
    code, out, err = intaglio("bench", small, "--baseline", large, *arguments, "--json", "--plot", plot)
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result.keys() >= {"median_ms", "p90_ms", "p99_ms", "throughput", "peak_bytes", "baseline", "ratio"}
    assert (result["kind"], result["unit"]) == ("decoder", "tokens")
    assert result["ratio"] > 1.5  # a factor of 11 fewer weights
    assert [row["prompt_tokens"] for row in result["rows"]] == [32, 100]
    for row in (*result["rows"], *result["baseline"]["rows"]):
        assert row["requests"] == 8
        assert row["prompt_tokens_read"] == pytest.approx(row["prompt_tokens"], abs=2)
        assert 0 < row["first_token"]["median_ms"] < row["median_ms"] <= row["p99_ms"]
        assert row["per_token"]["median_ms"] > 0
    weights = (large / "model.onnx").stat().st_size
    assert result["baseline"]["peak_bytes"] > result["peak_bytes"] + weights / 4
    drawn = plot.read_text()
    ElementTree.fromstring(drawn)  # noqa: S314  our own
    assert drawn.count("<circle") >= 12  # two rows of two models: throughput, median, 99th percentile


@pytest.mark.parametrize("rows", few([1, 4], [4]))
def test_batch_has_the_requested_concurrency(trained_pair: tuple[Path, Path], rows: int) -> None:
    with BundleSide(str(trained_pair[1]), {"max_new_tokens": 16, "ignore_eos": True}, None, 1) as side:
        side.run(Load(concurrency=rows, requests=rows))
        found = side.run(Load(concurrency=rows, requests=8))
    at_a_time = sum(timing.seconds for timing in found.timings) / found.seconds
    assert len(found.timings) == 8
    assert rows / 2 < at_a_time <= rows


@pytest.mark.proof
def test_strategy_applies_only_to_the_subject(trained_pair: tuple[Path, Path]) -> None:
    small, large = trained_pair
    found = bench(small, small, draft=large, strategy="speculative", window=3, **FEW)  # type: ignore[arg-type]
    assert found.baseline is not None
    assert found.peak_bytes is not None and found.baseline.peak_bytes is not None
    weights = (
        (large / "model.onnx").stat().st_size
    )  # the draft model is the larger one, so that its memory exceeds all noise
    assert found.peak_bytes > found.baseline.peak_bytes + weights / 4


def test_prompts_are_read_from_a_file(trained_pair: tuple[Path, Path], tmp_path: Path) -> None:
    small = trained_pair[0]
    tokenizer = read_backend(Bundle.open(small))
    text = "The import statement combines two operations"
    for name, content in (("p.jsonl", json.dumps({"prompt": text}) + "\n"), ("p.txt", f"{text}\n\n{text}\n")):
        (tmp_path / name).write_text(content)
        found = bench(small, data=tmp_path / name, **FEW)  # type: ignore[arg-type]
        assert found.rows[0].prompt_tokens_read == len(tokenizer.encode(text).ids)


def test_encoder_is_measured_by_batch_and_length(tiny_bundle: Path, intaglio: Run) -> None:
    lengths = ["--prompt-tokens", 16, "--prompt-tokens", 64, "--batch", 1, "--batch", 8]
    code, out, _ = intaglio("bench", tiny_bundle, *lengths, "--rounds", 2, "--requests", 16, "--json")
    result = json.loads(out)
    assert (code, result["kind"], result["unit"]) == (0, "encoder", "texts")
    rows = {(row["concurrency"], row["prompt_tokens"]): row for row in result["rows"]}
    assert rows.keys() == {(1, 16), (1, 64), (8, 16), (8, 64)}
    assert (rows[1, 16]["requests"], rows[8, 16]["requests"]) == (32, 4)  # batches
    assert all(row["first_token"] is None for row in rows.values())
    assert all(abs(row["prompt_tokens_read"] - tokens) <= 2 for (_, tokens), row in rows.items())
    assert all(row["throughput"] > row["requests_per_second"] for (texts, _), row in rows.items() if texts == 8)


def test_encoder_decoder_is_measured_by_generating(make_encoder_decoder: Callable[..., tuple[Path, Path]]) -> None:
    found = bench(make_encoder_decoder("t5")[1], requests=2, rounds=1, max_new_tokens=4)
    assert (found.kind, found.rows[0].requests) == ("encoder-decoder", 2)


def test_latencies_equal_those_of_generate(trained_pair: tuple[Path, Path]) -> None:
    with BundleSide(str(trained_pair[0]), {"max_new_tokens": 12, "ignore_eos": True}, ["The import"], 1) as side:
        side.run(Load(requests=2))
        found = side.run(Load(requests=5))
    assert [timing.units for timing in found.timings] == [12] * 5
    assert found.seconds / 2 < sum(timing.seconds for timing in found.timings) <= found.seconds
    for timing in found.timings:
        assert timing.first is not None and timing.per_token is not None
        assert timing.first + 11 * timing.per_token == pytest.approx(timing.seconds, rel=0.2)


@pytest.mark.parametrize("tokens", [1, 32, 500])
def test_text_pieces_have_the_requested_length_and_differ(trained_pair: tuple[Path, Path], tokens: int) -> None:
    tokenizer = read_backend(Bundle.open(trained_pair[0]))
    texts = of_tokens(tokenizer, tokens)
    assert all(abs(len(tokenizer.encode(text).ids) - tokens) <= 2 for text in texts)
    assert len(set(texts)) > 16
    assert len(texts) == 64


def test_special_tokens_of_an_encoder_count(tiny_bundle: Path) -> None:
    tokenizer = Tokenizer.open(Bundle.open(tiny_bundle))
    assert {tokenizer.feeds([text])["input_ids"].shape[1] for text in of_tokens(tokenizer.backend, 32)} <= {31, 32, 33}


def test_percentiles_are_measured_times() -> None:
    found = percentiles([each / 1e3 for each in (5, 1, 3, 2, 4, 100, 6, 8, 7, 9)])
    assert (found.median_ms, found.p90_ms, found.p99_ms) == pytest.approx((5, 9, 100))


def test_poisson_arrivals_have_the_given_rate_and_are_reproducible() -> None:
    due = [when for _, when in Load(requests=4000, rate=50.0).arrivals(10.0)]
    assert due[-1] - 10 == pytest.approx(80, rel=0.1)
    assert due == sorted(due)
    assert due == [when for _, when in Load(requests=4000, rate=50.0).arrivals(10.0)]
    assert due != [when for _, when in Load(requests=4000, rate=50.0, number=1).arrivals(10.0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds 0: expected at least 1"),
        ({"requests": 0}, "requests 0: expected at least 1"),
        ({"concurrency": (0,)}, "concurrency 0: expected at least 1"),
        ({"concurrency": ()}, "no concurrency"),
        ({"prompt_tokens": (0,)}, "prompt tokens 0: expected at least 1"),
        ({"seconds": 0.0}, "seconds 0: expected more than 0"),
        ({"seconds": float("nan")}, "seconds nan: expected more than 0"),
        ({"seconds": 1.0, "requests": 1}, "Leave one out"),
        ({"rate": 2.0}, "--rate: applies to servers only"),
        ({"data": "missing.jsonl"}, "--data missing.jsonl"),
        ({"data": "missing.jsonl", "prompt_tokens": (1,)}, "Leave one out"),
        ({"timeout": 0.0}, "timeout 0: expected more than 0 seconds"),
        ({"api": "graphql"}, "api 'graphql': expected one of completions, chat, embeddings"),
        ({"batch": 4}, "option 'batch'"),
        ({"max_tokens": 4}, "option 'max_tokens'"),
        ({"strategy": "fast"}, "strategy 'fast'"),
        ({"max_new_tokens": 0}, "max new tokens 0"),
        ({"prompt_tokens": (10_000,)}, "the model takes at most"),
        ({"baseline": "missing.json"}, "--baseline missing.json"),
    ],
)
def test_errors_print_one_line(options: dict[str, object], message: str, trained_pair: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        bench(trained_pair[0], **options)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_errors_of_a_bundle_name_that_bundle(
    tmp_path: Path, tiny_bundle: Path, trained_pair: tuple[Path, Path]
) -> None:
    with pytest.raises(BundleError, match="/nowhere"):
        bench("/nowhere")
    with pytest.raises(UsageError, match=r"--strategy: .* is an encoder"):
        bench(tiny_bundle, strategy="greedy")
    with pytest.raises(UsageError, match="prompt tokens 10000: the model takes at most 256"):
        bench(tiny_bundle, prompt_tokens=(10_000,))
    with pytest.raises(UsageError, match="Choose a baseline of the same kind"):
        bench(tiny_bundle, trained_pair[0])
    (tmp_path / "other.json").write_text('{"passed": true}')
    with pytest.raises(UsageError, match="not a result of intaglio bench --json"):
        bench(tiny_bundle, tmp_path / "other.json")


def test_results_of_other_loads_are_no_baseline(tiny_bundle: Path, intaglio: Run, tmp_path: Path) -> None:
    code, out, _ = intaglio("bench", tiny_bundle, "--requests", 1, "--rounds", 1, "--json")
    assert code == 0
    (tmp_path / "one.json").write_text(out)
    with pytest.raises(UsageError, match="was not measured with concurrency 2"):
        bench(tiny_bundle, tmp_path / "one.json", concurrency=(1, 2))


def test_killed_process_prints_one_line(trained_pair: tuple[Path, Path]) -> None:
    with BundleSide(str(trained_pair[0]), {}, None, 1) as side:
        os.kill(side._child.process.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="its process ended: exit code -9"):
            side.run(Load(requests=1))


def test_interrupt_leaves_no_process(trained_pair: tuple[Path, Path]) -> None:
    command = [sys.executable, "-P", "-m", "intaglio", "bench", str(trained_pair[1]), "--seconds", "60"]
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{program.pid}/task/{program.pid}/children")
    while not (found := children.read_text().split()):
        time.sleep(0.05)
    time.sleep(1.5)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=30)
    assert program.returncode == 130
    assert err.startswith("intaglio: interrupted") and err.count("\n") == 1
    assert not any(Path(f"/proc/{child}").exists() for child in found)


def test_table_names_the_measured_values(trained_pair: tuple[Path, Path], intaglio: Run, tmp_path: Path) -> None:
    small = trained_pair[0]
    page = tmp_path / "page.html"
    arguments = ["bench", small, "--requests", 2, "--rounds", 1, "-n", 4, "--plot", page]
    code, out, err = intaglio(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("decoder, 1 round, measured on ")
    assert "tokens per second" in out
    assert f"{small}: peak memory of its process " in out
    assert page.read_text().startswith("<!doctype html>")
    code, _, err = intaglio(*arguments)
    assert (code, "exists already" in err) == (2, True)
    code, _, err = intaglio(*arguments[:-1], tmp_path / "page.png", "--force")
    assert (code, "ends with .svg or .html" in err) == (2, True)


def test_table_tells_a_bundle_from_itself_as_the_baseline(trained_pair: tuple[Path, Path], intaglio: Run) -> None:
    small = trained_pair[0]
    options = ["--strategy", "ngram", "--baseline", small, "--requests", 1, "--rounds", 1, "-n", 4]
    code, out, err = intaglio("bench", small, *options)
    assert (code, err) == (0, "")
    assert f"\n{small}: peak memory" in out
    assert f"\n{small} (baseline): peak memory" in out


@pytest.mark.proof
def test_single_pass_results_have_no_time_per_token(trained_pair: tuple[Path, Path]) -> None:
    found = bench(trained_pair[0], requests=2, rounds=1, max_new_tokens=1)
    assert found.rows[0].per_token is None
    assert found.rows[0].first_token is not None
    assert Timing(1.0, 1).per_token is None
