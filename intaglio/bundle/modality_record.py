"""What a manifest records of inputs that are not texts: the base of the records of all modalities."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ModalityRecord(msgspec.Struct, frozen=True):
    """What a bundle's graph needs to know of its inputs, if they are not texts: a field of `Manifest`."""

    modality: ClassVar[str]  # its row of `intaglio.runtime.modalities.table`
    items: ClassVar[str]  # the inputs, as messages call them: "images"

    @property
    def processed_elsewhere(self) -> bool:
        """Whether the graph takes what another program computed from the inputs."""
        return False
