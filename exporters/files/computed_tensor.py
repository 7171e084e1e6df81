"""A tensor that no file stores in its form: it is computed from what the files have when it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from intaglio.exporters.files.safetensors_file import MappedTensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ComputedTensor:
    """A tensor whose parts stay in their files until `read` computes it, in float32: decoded, or with an adapter."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    form: str = ""  # in which the files have it, for people; "" where only its order differs, or numbers are added

    @property
    def dtype(self) -> torch.dtype:
        """Of `tensor`."""
        import torch

        return torch.float32

    @property
    def tensor(self) -> torch.Tensor:
        """The numbers, float32, computed now."""
        return self.read()


FloatTensor = MappedTensor | ComputedTensor  # whose numbers are those of the model
