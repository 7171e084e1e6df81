"""A weight whose stored numbers no operator multiplies by: it is decoded to floating point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DecodedWeight:
    """A weight that stays in its files until `read` decodes it, to float32."""

    shape: tuple[int, ...]
    read: Callable[[], torch.Tensor]
    form: str  # in which the files have it, for people; "" where only its order or an offset differs

    @property
    def dtype(self) -> torch.dtype:
        """Of `tensor`."""
        import torch

        return torch.float32

    @property
    def tensor(self) -> torch.Tensor:
        """The numbers, float32, decoded now."""
        return self.read()
