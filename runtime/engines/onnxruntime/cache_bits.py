"""Whether the caches of a decoder can have 8 or 4 bits: asked before it is opened, or deployed elsewhere."""

from __future__ import annotations

from collections.abc import Iterable

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.onnxruntime.cached_attention import attend_by_our_kernel
from intaglio.runtime.engines.onnxruntime.partial_graph import partial_graph
from intaglio.runtime.engines.onnxruntime.quantized_cache import quantize_caches
from intaglio.runtime.engines.opening import check_target


def check_manifest(bundle: Bundle, bits: int) -> None:
    """Raise `UsageError` for an encoder-decoder."""
    if bundle.manifest.encoder is not None:
        raise UsageError(f"--cache-bits {bits}: {bundle.path} is an encoder-decoder, expected a decoder. Leave it out.")


def check_caches(bundles: Iterable[Bundle], target: str, bits: int) -> None:
    """Raise `UsageError` unless there is a decoder among `bundles`, and each runs on `target` with caches of `bits`.

    Of the graphs, weights are not read.
    """
    decoders = [bundle for bundle in bundles if bundle.manifest.generates]
    if not decoders:
        raise UsageError("--cache-bits is for decoders, and none is given. Leave it out.")
    check_target(target, bits)
    for bundle in decoders:
        check_manifest(bundle, bits)
        graph = partial_graph(bundle.model_path, None)
        attend_by_our_kernel(graph)
        quantize_caches(graph, bits)
