"""The modalities, and the lookup by manifest."""

from __future__ import annotations

from collections.abc import Mapping

from intaglio.bundle.bundle import Manifest
from intaglio.runtime.engines.engine import Array
from intaglio.runtime.modalities.audio import RECORDINGS
from intaglio.runtime.modalities.images import IMAGES
from intaglio.runtime.modalities.modality import Modality
from intaglio.runtime.modalities.text import TEXTS

MODALITIES = {"text": TEXTS, "audio": RECORDINGS, "image": IMAGES}


def modality_of(manifest: Manifest) -> Modality:
    """The modality of a bundle's inputs."""
    return MODALITIES[manifest.modality]


def real_positions(feeds: Mapping[str, Array], outputs: Mapping[str, Array]) -> Array | None:
    """The real positions of a batch's outputs, [batch, positions], 0 at padding; None: there is no padding."""
    masks = (modality.mask(feeds, outputs) for modality in MODALITIES.values())
    return next((mask for mask in masks if mask is not None), None)
