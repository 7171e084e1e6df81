"""The caches of built engines: what they hold, and whether that is what is asked for."""

from __future__ import annotations

import re

import msgspec

from intaglio.bundle.bundle import EngineRecord, TensorSpec
from intaglio.bundle.graph_records import Graph
from intaglio.bundle.plan_record import CACHE_BITS
from intaglio.errors import UsageError
from intaglio.plugins.quantize_cache.slots import WORD, slot_bytes

CACHE = re.compile(r"(past|present)_(key|value)_[0-9]+")  # a cache's name, see runtime/sessions/step.py


def with_slots(graph: Graph, cache_bits: int | None) -> Graph:
    """A graph whose caches are as `quantize_caches` makes them for engines; None: unchanged."""
    if cache_bits is None:
        return graph
    inputs, outputs = ([_with_slots(spec, cache_bits) for spec in specs] for specs in (graph.inputs, graph.outputs))
    return graph._replace(inputs=inputs, outputs=outputs)


def _with_slots(spec: TensorSpec, cache_bits: int) -> TensorSpec:
    found = CACHE.fullmatch(spec.name)
    if found is None:
        return spec
    *leading, depth = spec.shape
    bits = CACHE_BITS[cache_bits][found[2] == "value"]
    return msgspec.structs.replace(spec, dtype="float32", shape=(*leading, slot_bytes(int(depth), bits) // WORD))


def check_record(record: EngineRecord, cache_bits: int | None) -> None:
    """Raise `UsageError` unless an engine's caches have `cache_bits`; None: any."""
    if cache_bits not in (None, record.cache_bits):
        has = "of the model's type" if record.cache_bits is None else f"of {record.cache_bits} bits"
        raise UsageError(
            f"--cache-bits {cache_bits}: engine {record.path} has caches {has}. Leave it out, or build another with: "
            f"intaglio build BUNDLE --target {record.target} --cache-bits {cache_bits} --force"
        )
