"""The metrics of several replicas are one valid exposition, in both formats."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from intaglio.deploy.ray.replica_metrics import merged
from intaglio.serve.monitoring.metrics import OPEN_METRICS, ServerMetrics, exposition


def text_of(tokens: int) -> str:
    metrics = ServerMetrics()
    metrics.tokens("chat", tokens, 0.5)
    return metrics.render()[0].decode()


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_each_sample_names_its_replica(accept: str) -> None:
    text, kind = exposition(merged([("a", text_of(2)), ("b", text_of(3))]), accept)
    parse = open_metrics if accept else text_string_to_metric_families
    families = {family.name: family for family in parse(text.decode())}
    assert kind.startswith(accept or "text/plain")
    tokens = families["vllm:generation_tokens"]
    assert tokens.type == "counter"
    assert {sample.labels["replica"]: sample.value for sample in tokens.samples} == {"a": 2, "b": 3}
    latency = families["vllm:inter_token_latency_seconds"]
    counts = {each.labels["replica"]: each.value for each in latency.samples if each.name.endswith("_count")}
    assert latency.type == "histogram" and counts == {"a": 1, "b": 1}


def test_each_family_stands_once() -> None:
    text, _ = exposition(merged([("a", text_of(2)), ("b", text_of(3))]), "")
    heads = [line for line in text.decode().splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) > 20


def test_no_replica_is_no_metric() -> None:
    assert exposition(merged([]), "")[0] == b""
