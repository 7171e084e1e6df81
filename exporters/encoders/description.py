"""Description of an encoder's checkpoint: its family, the architecture to build, and the modules after it."""

from __future__ import annotations

from dataclasses import dataclass

from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.encoders.family import Family
from intaglio.exporters.encoders.sentence_transformers import SentenceHead, read_head
from intaglio.exporters.families import find_family, find_sentence_family


@dataclass(frozen=True)
class EncoderDescription:
    """A family, one of its architectures, and for a sentence-transformers folder the modules after it."""

    family: Family
    architecture: str
    head: SentenceHead | None
    positions: int  # the maximum tokens of a sequence, within the window
    window: int | None  # tokens that a token attends to, if they are fewer; it is not in the graph

    @property
    def task(self) -> str:
        """The task of the bundle."""
        return "embed" if self.head else self.family.architectures[self.architecture]

    @property
    def is_base(self) -> bool:
        """Whether it has no head of transformers, and returns hidden states."""
        return self.architecture == self.family.base


def describe_encoder(checkpoint: Checkpoint) -> EncoderDescription:
    """Describe `checkpoint`. Raises `SourceError` if it is not supported.

    In a sentence-transformers folder the model without a head counts, for any head that config.json lists.
    """
    config, where = checkpoint.config, str(checkpoint.folder)
    if head := read_head(checkpoint.root):
        family = find_sentence_family(config, where)
        architecture = family.base
    else:
        family, architecture = find_family(config, where)
    positions = family.max_length(config)
    window = family.window(config) or positions
    within = min(positions, window)
    return EncoderDescription(family, architecture, head, within, window if window < positions else None)
