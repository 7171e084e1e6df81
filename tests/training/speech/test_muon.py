"""Our Muon takes the same steps as torch's, in float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from intaglio.training.speech.muon import QUINTIC, Muon, orthogonalised

# Range of singular values near 1, as the iteration does not converge.
NEAR_ONE = 0.65, 1.25


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), number=st.integers(1, 3), seed=st.integers(0, 99))
def test_matrices_of_every_shape_become_orthogonal(rows: int, columns: int, number: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    size = min(rows, columns)
    left = torch.linalg.qr(torch.randn(number, rows, size, generator=random)).Q
    right = torch.linalg.qr(torch.randn(number, columns, size, generator=random)).Q
    values = 0.5 + torch.rand(number, 1, size, generator=random)
    found = orthogonalised((left * values) @ right.mT)
    between = left.mT @ found @ right  # the singular values, if the vectors are unchanged
    diagonal = torch.diagonal(between, dim1=1, dim2=2)
    assert (diagonal >= NEAR_ONE[0]).all() and (diagonal <= NEAR_ONE[1]).all()
    assert (between - torch.diag_embed(diagonal)).abs().max() < 1e-4
    assert (found - left @ between @ right.mT).abs().max() < 1e-4


def test_iteration_applies_the_quintic_to_each_singular_value() -> None:
    a, b, c = QUINTIC
    values = torch.tensor([0.9, 0.4, 0.05])
    expected = values / values.norm()
    for _ in range(5):
        expected = a * expected + b * expected**3 + c * expected**5
    torch.testing.assert_close(orthogonalised(torch.diag(values)[None])[0], torch.diag(expected), atol=1e-6, rtol=1e-5)


def test_zero_gradient_changes_no_weight() -> None:
    assert not orthogonalised(torch.zeros(2, 3, 4)).any()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_steps_equal_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start = torch.randn(*shape)
    ours, theirs = ([nn.Parameter(start.clone()), nn.Parameter(2 * start)] for _ in range(2))
    optimizers = [
        Muon(ours, lr=0.05, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.05, weight_decay=0.1),
    ]
    for _ in range(4):
        for gradient in (torch.randn(*shape), torch.randn(*shape)):
            for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
                parameters[0].grad, parameters[1].grad = gradient.clone(), 3 - gradient
                optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        # Torch iterates in bfloat16, whose numbers are 0.004 to 0.008 apart: 8 steps of 0.05 · √(6 / 4) at most.
        torch.testing.assert_close(one, other, atol=0.02, rtol=0)
        assert (one - other).abs().max() > 0


def test_matrices_without_a_gradient_are_unchanged() -> None:
    used, unused = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    optimizer = Muon([used, unused], lr=0.1)
    used.grad = torch.ones(2, 3)
    optimizer.step()
    assert (used != 1).all() and (unused == 1).all()
