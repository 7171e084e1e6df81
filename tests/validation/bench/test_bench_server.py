"""bench at a URL: measurements of a real HTTP server, and its counted failures."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from streaming_server import APART, PAUSE, RESIDENT, StreamingServer, serving

from intaglio.errors import EngineError, MissingExtraError, UsageError
from intaglio.validation.bench.bench import bench
from intaglio.validation.bench.results import Bench

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server() -> Iterator[StreamingServer]:
    with serving() as running:
        yield running


def measured(server: StreamingServer, **options: object) -> Bench:
    return bench(server.url, **{"rounds": 1, "requests": 4, "max_new_tokens": 6, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_times_are_measured_from_the_stream(server: StreamingServer, api: str) -> None:
    found = measured(server, api=api)
    (row,) = found.rows
    assert (found.kind, found.unit, row.requests, row.errors) == ("server", "tokens", 4, {})
    assert row.prompt_tokens_read == 11
    assert row.first_token is not None and row.per_token is not None
    whole = 1e3 * (PAUSE + 6 * APART)
    assert 1e3 * PAUSE <= row.first_token.median_ms < row.median_ms - 5e3 * APART
    assert 1e3 * APART <= row.per_token.median_ms < row.median_ms
    assert whole <= row.median_ms <= row.p90_ms <= row.p99_ms
    assert found.throughput == pytest.approx(6 * row.requests_per_second)
    assert found.peak_bytes == RESIDENT


def test_request_is_greedy_with_the_options_of_generate(server: StreamingServer) -> None:
    measured(server, requests=1, stop=["#"], seed=3)
    *_, body = server.bodies
    prompt = body.pop("prompt")
    assert 80 <= len(prompt.split()) <= 128
    assert body == {
        "model": "first", "max_tokens": 6, "temperature": 0.0, "stop": ["#"], "seed": 3,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    measured(server, requests=1, top_p=0.5, model="second")
    assert server.bodies[-1]["top_p"] == 0.5
    assert server.bodies[-1]["model"] == "second"
    assert "temperature" not in server.bodies[-1]


def test_concurrency_equals_the_requested_one(server: StreamingServer) -> None:
    found = measured(server, concurrency=(1, 5), requests=10)
    assert server.most == 5
    one, five = found.rows
    assert (one.requests, five.requests) == (10, 10)


def test_tokens_are_counted_by_events_without_reported_usage(server: StreamingServer) -> None:
    server.usage = False
    found = measured(server, requests=2)
    assert found.throughput > 0
    assert found.rows[0].prompt_tokens_read == 0
    assert found.rows[0].throughputs[0] == pytest.approx(6 * found.rows[0].requests_per_second)


def test_embeddings_are_counted_in_texts(server: StreamingServer) -> None:
    found = measured(server, api="embeddings", concurrency=(2,))
    assert (found.unit, found.rows[0].first_token, found.rows[0].prompt_tokens_read) == ("texts", None, 7)
    assert found.throughput == pytest.approx(found.rows[0].requests_per_second)
    assert server.bodies[-1].keys() == {"model", "input"}


def test_requests_arrive_at_the_rate_and_queueing_counts_as_latency(server: StreamingServer) -> None:
    measured(server, rate=40.0, requests=20, concurrency=(20,))
    arrived = server.times[20:]  # after the warm-up
    apart = [later - earlier for earlier, later in itertools.pairwise(arrived)]
    assert 0.25 <= arrived[-1] - arrived[0] <= 5  # 20 requests at 40 per second
    assert max(apart) > 3 * min(apart)  # random, not regular
    late = measured(server, rate=200.0, requests=8, concurrency=(1,))  # one client: the others queue for it
    assert late.p99_ms > 5e3 * (PAUSE + 6 * APART)


def test_time_limit_ends_a_round_and_finishes_running_requests(server: StreamingServer) -> None:
    found = measured(server, requests=None, seconds=0.5, concurrency=(2,))
    assert 2 <= found.rows[0].requests <= 22
    assert server.running == 0


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("fails", "HTTP 500"),
        ("breaks", "connection closed"),
        ("ends early", "stream ended early"),
        ("reports an error", "error in the stream"),
        ("garbage", "invalid JSON"),
        ("json", "not a stream"),
    ],
)
def test_server_that_fails_every_request_is_one_error_with_the_reason(
    server: StreamingServer, behaviour: str, kind: str
) -> None:
    server.behaviour = behaviour
    with pytest.raises(EngineError, match=f"all requests failed: 4 × {kind}") as raised:
        measured(server)
    assert "\n" not in str(raised.value)


def test_message_of_the_server_is_shown(server: StreamingServer) -> None:
    server.behaviour = "fails"
    with pytest.raises(EngineError, match="the first: it broke"):
        measured(server, api="embeddings")


def test_refused_request_is_counted_and_obeys_retry_after(server: StreamingServer, intaglio: Run) -> None:
    server.busy = 3  # one of them in the warm-up
    arguments = ["bench", server.url, "--rounds", 1, "--requests", 5, "-n", 4]
    code, out, _ = intaglio(*arguments, "--json")
    result = json.loads(out)
    assert code == 1
    assert result["rows"][0]["errors"] == {"HTTP 429": 2}
    assert result["rows"][0]["requests"] == 3
    assert [later - earlier >= 0.95 for earlier, later in itertools.pairwise(server.times)][:3] == [
        True, True, True,
    ]  # fmt: skip
    server.busy, server.retry_after = 2, "Wed, 21 Oct 2026 07:28:00 GMT"
    code, out, _ = intaglio(*arguments)
    assert (code, "1 request failed: HTTP 429" in out) == (1, True)


def test_unreachable_server_prints_one_line(intaglio: Run) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        code, out, err = intaglio("bench", url)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"intaglio: {url}: cannot connect")
    assert "Check the URL" in line


def test_api_key_is_sent_only_if_its_variable_is_named(
    server: StreamingServer, intaglio: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "secret"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    arguments = ["bench", f"{server.url}/v1/", "--rounds", 1, "--requests", 1, "-n", 2, "--json"]
    code, _, err = intaglio(*arguments)
    assert (code, "HTTP 401: the key is wrong" in err) == (2, True)
    assert intaglio(*arguments, "--api-key-env", "OPENAI_API_KEY")[0] == 0
    code, _, err = intaglio(*arguments, "--api-key-env", "NO_SUCH_KEY")
    assert (code, "NO_SUCH_KEY: the environment variable is not set" in err) == (2, True)


def test_two_servers_alternate_and_give_a_ratio(server: StreamingServer, intaglio: Run, tmp_path: Path) -> None:
    with serving() as other:
        arguments = ["--requests", 2, "--rounds", 2, "-n", 4, "--json"]
        code, out, _ = intaglio("bench", server.url, "--baseline", other.url, *arguments)
    result = json.loads(out)
    assert code == 0
    assert result.keys() >= {"median_ms", "p90_ms", "p99_ms", "throughput", "peak_bytes", "baseline", "ratio"}
    assert 0.2 < result["ratio"] < 5
    assert result["baseline"]["subject"] == other.url
    assert [body["prompt"] for body in server.bodies] == [body["prompt"] for body in other.bodies]
    (tmp_path / "before.json").write_text(out)
    code, out, _ = intaglio("bench", server.url, "--baseline", tmp_path / "before.json", *arguments)
    assert code == 0
    assert json.loads(out)["baseline"]["throughput"] == result["throughput"]


def test_server_side_options_are_refused(server: StreamingServer) -> None:
    with pytest.raises(UsageError, match="--strategy: a server chooses it"):
        measured(server, strategy="ngram")
    with pytest.raises(UsageError, match="--window: a server chooses it"):
        measured(server, window=2)
    with pytest.raises(UsageError, match="--threads: a server chooses it"):
        measured(server, threads=1)
    with pytest.raises(UsageError, match="--seed: does not apply to embeddings"):
        measured(server, api="embeddings", seed=1)


def test_threads_option_applies_only_to_the_bundle(server: StreamingServer, trained_pair: tuple[Path, Path]) -> None:
    found = measured(server, baseline=trained_pair[0], threads=1)
    assert found.baseline is not None and found.ratio is not None
    assert (found.baseline.kind, found.baseline.rows[0].requests) == ("decoder", 4)
    assert found.ratio == pytest.approx(found.throughput / found.baseline.throughput)
    assert "threads" not in server.bodies[-1]


def test_missing_client_names_the_extra(server: StreamingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtraError, match=r"intaglio\[bench\]"):
        measured(server)


def test_server_benchmark_needs_no_runtime(server: StreamingServer) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'onnxruntime', 'transformers', 'tensorrt'): sys.modules[name] = None\n"
        "import intaglio\n"
        f"print(intaglio.bench({server.url!r}, rounds=1, requests=2, max_new_tokens=3).rows[0].requests)\n"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "2\n"
