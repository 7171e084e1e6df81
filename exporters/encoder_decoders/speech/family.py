"""Which encoder-decoders for recordings can be exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.exporters.checkpoints.family import Family


@dataclass(frozen=True)
class SpeechSeq2Seq(Family):
    """A family of encoder-decoders that read a recording and write a text."""

    def check(self, config: Mapping[str, Any], where: str) -> None:
        """See `Family`: any configuration is tried, and compared with the source model."""


WHISPER = SpeechSeq2Seq("whisper", "WhisperForConditionalGeneration")
