"""The metrics of several processes as those of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

REPLICA = "replica"


def merged(texts: Iterable[tuple[str, str]]) -> CollectorRegistry:
    """The samples of all `texts`, (process, metrics in Prometheus' format), each with the label `replica`."""
    families: dict[str, Metric] = {}
    for process, text in texts:
        for family in text_string_to_metric_families(text):
            if family.name.endswith("_created"):  # the time of a counter's first sample, to the parser a gauge
                continue
            found = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                found.add_sample(sample.name, {**sample.labels, REPLICA: process}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return registry


class _Collected(Collector):
    """Metrics that were collected before."""

    def __init__(self, families: dict[str, Metric]):
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families.values()
