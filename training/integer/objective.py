"""Distillation: the distance of a network's outputs from its teacher's, as a loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from intaglio.runtime.text.inputs import MASK

LOGITS = "logits"


def distillation_loss(
    student: Mapping[str, Tensor], teacher: Mapping[str, Tensor], feeds: Mapping[str, Tensor], names: Sequence[str]
) -> Tensor:
    """The sum of the distances of the outputs in `names` from the teacher's, at real tokens.

    1. Logits: the Kullback-Leibler divergence of softmax(student) from softmax(teacher), averaged over rows.
    2. Any other: |student - teacher|² / |teacher|², averaged over vectors; for vectors of length 1 that is
       2·(1 - cosine).
    """
    mask = feeds.get(MASK)
    terms = [_loss(name, _real(student[name], mask), _real(teacher[name], mask)) for name in names]
    return torch.stack(terms).sum()


def _loss(name: str, student: Tensor, teacher: Tensor) -> Tensor:
    if name == LOGITS:
        rows = student.reshape(-1, student.shape[-1]), teacher.reshape(-1, teacher.shape[-1])
        logs = [functional.log_softmax(each, -1) for each in rows]
        return functional.kl_div(logs[0], logs[1], reduction="batchmean", log_target=True)
    errors = (student - teacher).square().sum(-1)
    return (errors / teacher.square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)).mean()


def _real(array: Tensor, mask: Tensor | None) -> Tensor:
    """The tokens of [batch, sequence, width] without padding, as [tokens, width]; any other array unchanged."""
    if mask is not None and array.ndim > 2 and array.shape[:2] == mask.shape:
        return array[mask != 0]
    return array
