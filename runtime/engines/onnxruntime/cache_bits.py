"""Whether the caches of a decoder can have 8 or 4 bits: asked before it is opened, or deployed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.caches.engine_caches import check_record
from intaglio.runtime.engines.caches.quantized_cache import NONE, check_manifest, quantize_caches
from intaglio.runtime.engines.onnxruntime.partial_graph import partial_graph
from intaglio.runtime.engines.onnxruntime.session_operators import check_kernels
from intaglio.targets import find_target


def check_caches(bundles: Iterable[Bundle], target: str, bits: int) -> None:
    """Raise `UsageError` unless there is a decoder among `bundles`, and each runs on `target` with caches of `bits`.

    Of the graphs, weights are not read; of a target that runs built engines, their records are.
    """
    decoders = [bundle for bundle in bundles if bundle.manifest.generates]
    if not decoders:
        raise UsageError(NONE)
    if not find_target(target).runs_files:
        for bundle in decoders:
            records = [each for each in bundle.manifest.engines if each.target == target]
            if not any(each.cache_bits == bits for each in records):
                for record in records:
                    check_record(record, bits)
                raise UsageError(
                    f"--cache-bits {bits}: {bundle.path} has no engine for target {target}. Build one with: "
                    f"intaglio build {bundle.path} --target {target} --cache-bits {bits}"
                )
        return
    check_kernels(bits)
    for bundle in decoders:
        check_manifest(bundle, bits)
        graph = partial_graph(bundle.model_path, None)
        quantize_caches(graph, bits)
