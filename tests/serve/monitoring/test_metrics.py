"""The metrics of the server, as a Prometheus server reads them."""

from __future__ import annotations

import threading
from pathlib import Path

import prometheus_client
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families

from intaglio.runtime.generation.generate import generate
from intaglio.runtime.generation.scheduling.generated import Generated
from intaglio.runtime.generation.scheduling.scheduler_options import Load
from intaglio.runtime.strategies import Calls, Seconds, Tokens
from intaglio.serve.monitoring.metrics import ServerMetrics


def samples(metrics: ServerMetrics, **labels: str) -> dict[str, float]:
    """Sample name -> value of the samples with these labels, as a scraper reads them."""
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain; version=0.0.4")
    found = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    return {each.name: each.value for each in found if each.labels == labels}


def generated(**changed: object) -> Generated:
    """A result with a draft model: 5 tokens, of which 3 were drafted and one draft was rejected."""
    fields = {
        "prompt": "secret prompt",
        "text": "secret text",
        "tokens": [1, 2, 3, 4, 5],
        "trace": [],
        "tokens_per_second": 40.0,
        "strategy": "speculative",
        "calls": Calls(4, 2),
        "processed": Tokens(20, 20),
        "seconds_in": Seconds(0.25, 0.5),
        "accepted": 3,
        "rolled_back": 1,
        "acceptance": 0.75,
        "blocks": None,
        "origins": 0,
        "stopped": "eos",
        "prompt_tokens": 16,
        "reused_tokens": 10,
        "queued_seconds": 0.5,
        "prompt_seconds": 1.0,
        "seconds": 3.0,
    }
    return Generated(**{**fields, **changed})  # type: ignore[arg-type]


def test_finished_request_is_counted_under_vllm_names() -> None:
    metrics = ServerMetrics()
    metrics.finished("llama", generated(), "stop")
    found = samples(metrics, model_name="llama")
    expected = {
        "vllm:prompt_tokens_total": 16,
        "vllm:generation_tokens_total": 5,
        "vllm:prefix_cache_queries_total": 16,
        "vllm:prefix_cache_hits_total": 10,
        "vllm:spec_decode_num_draft_tokens_total": 4,
        "vllm:spec_decode_num_accepted_tokens_total": 3,
        "vllm:time_to_first_token_seconds_sum": 1.5,
        "vllm:request_time_per_output_token_seconds_sum": 0.5,
        "vllm:e2e_request_latency_seconds_sum": 3.5,
        "vllm:request_queue_time_seconds_sum": 0.5,
        "vllm:request_prefill_time_seconds_sum": 1.0,
        "vllm:request_decode_time_seconds_sum": 2.0,
        "vllm:request_prompt_tokens_sum": 16,
        "vllm:request_generation_tokens_sum": 5,
        "vllm:inter_token_latency_seconds_count": 0,
    }
    assert {name: found[name] for name in expected} == expected
    assert samples(metrics, model_name="llama", finished_reason="stop")["vllm:request_success_total"] == 1
    assert samples(metrics, model_name="llama", part="draft")["intaglio:model_seconds_total"] == 0.25
    assert samples(metrics, model_name="llama", part="target")["intaglio:model_seconds_total"] == 0.5
    assert b"secret" not in metrics.render()[0]


def test_streamed_tokens_are_counted_once() -> None:
    metrics = ServerMetrics()
    metrics.tokens("llama", 1, None)
    metrics.tokens("llama", 2, 0.25)
    assert samples(metrics, model_name="llama")["vllm:generation_tokens_total"] == 3
    metrics.finished("llama", generated(), "stop", first_token_seconds=2.0, seconds=9.0, counted=3)
    found = samples(metrics, model_name="llama")
    assert found["vllm:generation_tokens_total"] == 5
    assert (found["vllm:inter_token_latency_seconds_sum"], found["vllm:inter_token_latency_seconds_count"]) == (0.25, 1)
    assert found["vllm:time_to_first_token_seconds_sum"] == 2
    assert found["vllm:e2e_request_latency_seconds_sum"] == 9


def test_request_without_tokens_has_no_first_token_time() -> None:
    metrics = ServerMetrics()
    metrics.finished("llama", generated(tokens=[], accepted=0, rolled_back=0), "abort")
    metrics.cancelled("llama")
    found = samples(metrics, model_name="llama")
    assert found["vllm:time_to_first_token_seconds_count"] == 0
    assert found["vllm:e2e_request_latency_seconds_count"] == 1
    assert found["intaglio:requests_cancelled_total"] == 1


def test_metrics_of_a_real_request(tiny_decoder: Path) -> None:
    metrics = ServerMetrics()
    (result,) = generate(tiny_decoder, "a b c", max_new_tokens=4)
    metrics.finished("gpt2", result, "length")
    found = samples(metrics, model_name="gpt2")
    assert found["vllm:generation_tokens_total"] == len(result.tokens) > 1
    assert found["vllm:prompt_tokens_total"] == result.prompt_tokens > 0
    assert 0 < found["vllm:time_to_first_token_seconds_sum"] < found["vllm:e2e_request_latency_seconds_sum"]


def test_gauges_are_read_at_scrape_time() -> None:
    metrics, states = ServerMetrics(), [Load(2, 3, 50, 200)]
    metrics.gauges("llama", lambda: states[-1])
    metrics.gauges("minilm", lambda: Load(1, 0))
    found = samples(metrics, model_name="llama")
    assert (found["vllm:num_requests_running"], found["vllm:num_requests_waiting"]) == (2, 3)
    assert found["vllm:kv_cache_usage_perc"] == 0.25
    assert samples(metrics, model_name="minilm")["vllm:kv_cache_usage_perc"] == 0  # it has no cache
    assert found["vllm:generation_tokens_total"] == 0  # a rate needs the zero before the first request
    states.append(Load())
    assert samples(metrics, model_name="llama")["vllm:num_requests_running"] == 0


def test_encoder_and_http_metrics() -> None:
    metrics = ServerMetrics()
    metrics.encoded("minilm", 12, 0.004)
    metrics.rejected("minilm", "busy")
    metrics.http("/v1/embeddings", "POST", 429, 0.01)
    assert samples(metrics, model_name="minilm")["vllm:prompt_tokens_total"] == 12
    assert samples(metrics, model_name="minilm", le="0.005")["vllm:e2e_request_latency_seconds_bucket"] == 1
    assert samples(metrics, model_name="minilm", reason="busy")["intaglio:requests_rejected_total"] == 1
    route = {"route": "/v1/embeddings", "method": "POST"}
    assert samples(metrics, **route, status="429")["intaglio:http_requests_total"] == 1
    assert samples(metrics, **route)["intaglio:http_request_seconds_sum"] == 0.01


def test_open_metrics_is_served_by_accept_header() -> None:
    metrics = ServerMetrics()
    metrics.finished('a "model"\n', generated(), "stop")
    text, content_type = metrics.render("application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family.samples for family in read_open_metrics(text.decode())}
    assert {"vllm:prompt_tokens", "vllm:num_requests_running", "intaglio:http_request_seconds"} <= set(families)
    assert families["vllm:prompt_tokens"][0].name == "vllm:prompt_tokens_total"
    assert families["vllm:prompt_tokens"][0].labels == {"model_name": 'a "model"\n'}


def test_servers_in_a_process_do_not_share_metrics() -> None:
    first, second = ServerMetrics(), ServerMetrics()
    first.cancelled("llama")
    second.gauges("llama", Load)
    assert samples(second, model_name="llama")["intaglio:requests_cancelled_total"] == 0
    assert b"vllm:" not in prometheus_client.generate_latest()


def test_counters_are_thread_safe() -> None:
    metrics = ServerMetrics()

    def count() -> None:
        for _ in range(2000):
            metrics.tokens("llama", 1, 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(metrics, model_name="llama")["vllm:generation_tokens_total"] == pytest.approx(8000, abs=0)
