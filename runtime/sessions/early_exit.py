"""A decoder's first blocks as a draft model, with the same cache (thesis section 4.3, early exiting).

The states of the first blocks do not depend on the later blocks, so their keys and values are the same whether a token
leaves at the exit or runs through the whole model: both write the same values.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import UsageError
from intaglio.runtime.engines.device_memory import DeviceMemory
from intaglio.runtime.engines.engine import Engine
from intaglio.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from intaglio.runtime.sessions.decoder import DecoderSession
from intaglio.runtime.sessions.draft_threads import draft_threads
from intaglio.runtime.sessions.key_value_cache import KeyValueCache
from intaglio.runtime.sessions.step import EXIT_LOGITS, exit_outputs
from intaglio.targets import find_target


class EarlyExitSession(DecoderSession):
    """A view of a decoder session with an early exit: its first blocks, which write to the same cache.

    It has its own `lengths`, never below those of the whole model, whose passes also fill the first blocks' cache. A
    step in a batch writes beyond the end of rows with fewer tokens; so a pass of the whole model must read all drafted
    tokens of each sequence that continues, which strategies do. The whole model's session must outlive this one.
    """

    logits_name: ClassVar[str] = EXIT_LOGITS

    def __init__(self, engine: Engine, whole: DecoderSession):
        """`engine`: with only the `exit_outputs`."""
        self._whole = whole
        blocks, caches = whole.decoder.exit_layer, whole.decoder.caches
        decoder = msgspec.structs.replace(whole.decoder, layers=blocks, caches=caches[:blocks])
        super().__init__(engine, decoder, whole.batch, whole.limit)
        self.cache = whole.cache
        self.vocabulary = whole.vocabulary

    @classmethod
    def beside(
        cls, whole: DecoderSession, bundle: Bundle, target: str = "ort-cpu", threads: int | None = None
    ) -> EarlyExitSession:
        """Open the early exit of the decoder in `bundle`; `whole` is the session of the whole model.

        Raises `UsageError` for a decoder without early exit, and for engines that cannot share a cache.
        """
        if not whole.decoder.exit_layer:
            raise UsageError(
                f"--early-exit: the model in {bundle.path} has no early exit. Train it (intaglio train early-exit), "
                "export the result, and generate with that bundle."
            )
        if not find_target(target).runs_files:
            raise UsageError(f"--early-exit: target {target} computes the whole model only. Use --target ort-cpu.")
        few = draft_threads(bundle, threads, whole.decoder.exit_layer / whole.decoder.layers)
        shared = whole.engine.memory if isinstance(whole.engine.memory, DeviceMemory) else None
        outputs = exit_outputs(whole.decoder)
        bits = whole.engine.cache_bits
        return cls(OnnxRuntimeEngine(bundle, target, few, outputs=outputs, memory=shared, cache_bits=bits), whole)

    def close(self) -> None:
        """Release the engine; the cache is the whole model's."""
        self.cache = KeyValueCache(self.engine.memory, self.decoder, self.batch, {})
        super().close()

    @property
    def lengths(self) -> list[int]:
        """The number of cached tokens of each row in the first blocks, [batch]."""
        return [*map(max, self._lengths, self._whole.lengths)]

    @lengths.setter
    def lengths(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def truncate(self, row: int, length: int) -> None:
        """Truncate `row` to `length` tokens, but not below the whole model's length."""
        self._lengths[row] = min(self._lengths[row], length)

    def copy(self, source: int, row: int, length: int) -> None:
        """See `DecoderSession`; of the cache that both share, the first blocks' part is copied."""
        self._reserve(length)  # takes over the whole model's buffers, if they are new
        self.cache.copy(source, row, length, len(self.decoder.layer_caches))
        self._lengths[row] = length

    def _reserve(self, slots: int) -> None:
        """Let the whole model's session reserve slots, and follow if its buffers are new."""
        self._whole._reserve(slots)
        super()._reserve(slots)
