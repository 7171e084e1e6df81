"""The pruned weights of a causal language model: single weights by magnitude, or hidden channels by their rows.

Masks only grow. The weights under them are 0 and get no gradient, so that training continues with the rest ("Exploring
Methods for Efficient Large Language Model Inference", section 2.2). Fractions are per layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intaglio.errors import SourceError


@dataclass(frozen=True)
class Layout:
    """The paths of a model's feed-forward networks, and the key of their width in config.json."""

    blocks: str  # the list of blocks, below the causal language model
    ups: tuple[str, ...]  # below a block, the modules that compute the hidden channels
    down: str  # the module that reads them
    width: str

    @property
    def modules(self) -> tuple[str, ...]:
        """All of them, below a block."""
        return (*self.ups, self.down)


# GPT-2, OPT, and LLaMA and similar families.
LAYOUTS = (
    Layout("transformer.h", ("mlp.c_fc",), "mlp.c_proj", "n_inner"),
    Layout("model.decoder.layers", ("fc1",), "fc2", "ffn_dim"),
    Layout("model.layers", ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj", "intermediate_size"),
)


def layout_of(network: Any) -> Layout:
    """The layout of every block of the network. Raises `SourceError` if it is none of `LAYOUTS`."""
    paths = {name for name, _ in network.named_modules()}
    for layout in LAYOUTS:
        blocks = network.get_submodule(layout.blocks) if layout.blocks in paths else ()
        modules = [f"{layout.blocks}.{index}.{name}" for index in range(len(blocks)) for name in layout.modules]
        if modules and paths.issuperset(modules):
            return layout
    raise SourceError(
        f"rows of {network.config.model_type!r}: expected feed-forward networks of "
        f"{' or '.join('/'.join(layout.modules) for layout in LAYOUTS)} in every block. Prune by magnitude."
    )


class Masks(ABC):
    """The masks of one network."""

    def __init__(self) -> None:
        self.fraction = 0.0  # the requested one

    @abstractmethod
    def reached(self) -> float:
        """The fraction of each layer that is covered."""

    @abstractmethod
    def tighten(self, fraction: float) -> None:
        """Extend the mask to cover `fraction` of each layer."""

    @abstractmethod
    def _covered(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        """Every parameter with a broadcastable bool tensor, True at covered elements."""

    @torch.no_grad()
    def apply(self) -> None:
        """Set covered elements and their gradients to 0."""
        for parameter, mask in self._covered():
            parameter.masked_fill_(mask, 0)
            if parameter.grad is not None:
                parameter.grad.masked_fill_(mask, 0)

    def zeros(self) -> int:
        """The number of covered elements."""
        return sum(int(mask.expand_as(parameter).sum()) for parameter, mask in self._covered())


class MagnitudeMasks(Masks):
    """Covers the weights of the smallest magnitude in the matrices of linear layers, except tied embeddings."""

    def __init__(self, network: torch.nn.Module):
        super().__init__()
        tables = {id(module.weight) for module in network.modules() if isinstance(module, torch.nn.Embedding)}
        layers = [module for module in network.modules() if is_linear(module) and id(module.weight) not in tables]
        self._weights: list[torch.nn.Parameter] = [layer.get_parameter("weight") for layer in layers]
        self._masks = [torch.zeros_like(weight, dtype=torch.bool) for weight in self._weights]

    def reached(self) -> float:
        """The fraction of each matrix that is covered."""
        return self.fraction

    @torch.no_grad()
    def tighten(self, fraction: float) -> None:
        """Cover `fraction` of each matrix."""
        self.fraction = max(self.fraction, fraction)
        for weight, mask in zip(self._weights, self._masks, strict=True):
            magnitudes = weight.abs().masked_fill_(mask, -1).view(-1)
            count = round(self.fraction * magnitudes.numel())
            mask.view(-1)[torch.topk(magnitudes, count, largest=False, sorted=False).indices] = True

    def _covered(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        yield from zip(self._weights, self._masks, strict=True)


class RowMasks(Masks):
    """Covers hidden channels of the feed-forward networks: those whose rows have the smallest L2 norm.

    The number is the same in every block, as config.json has one width for all of them, and the number of remaining
    channels is a multiple of `multiple`. Raises `SourceError` for unknown networks.
    """

    def __init__(self, network: Any, multiple: int = 32):
        super().__init__()
        self.layout = layout_of(network)
        blocks = network.get_submodule(self.layout.blocks)
        self._ups = [[block.get_submodule(name) for name in self.layout.ups] for block in blocks]
        self._downs = [block.get_submodule(self.layout.down) for block in blocks]
        self._multiple = multiple
        self.channels = rows_of(self._ups[0][0]).shape[0]
        self._masks = [torch.zeros(self.channels, dtype=torch.bool) for _ in self._ups]

    def reached(self) -> float:
        """The fraction of the channels that is covered."""
        return 1 - self.kept(self.fraction) / self.channels

    def kept(self, fraction: float) -> int:
        """The number of channels that remain if `fraction` is covered."""
        wanted = round((1 - fraction) * self.channels / self._multiple) * self._multiple
        return min(max(wanted, self._multiple), self.channels)

    @torch.no_grad()
    def tighten(self, fraction: float) -> None:
        """Cover `fraction` of the channels of each network, rounded to the multiple."""
        self.fraction = max(self.fraction, fraction)
        count = self.channels - self.kept(self.fraction)
        for ups, mask in zip(self._ups, self._masks, strict=True):
            norms = torch.stack([rows_of(up).square().sum(1) for up in ups]).sum(0)
            norms.masked_fill_(mask, -1)
            mask[torch.topk(norms, count, largest=False, sorted=False).indices] = True

    def _covered(self) -> Iterator[tuple[torch.nn.Parameter, Tensor]]:
        for ups, down, mask in zip(self._ups, self._downs, self._masks, strict=True):
            for up in ups:
                yield up.weight, mask[None, :] if is_transposed(up) else mask[:, None]
                if up.bias is not None:
                    yield up.bias, mask
            yield down.weight, mask[:, None] if is_transposed(down) else mask[None, :]

    def removed(self, network: Any) -> Any:
        """A network without the covered channels, and with the matching configuration."""
        state = network.state_dict()
        names = {id(parameter): name for name, parameter in network.named_parameters()}
        for ups, down, mask in zip(self._ups, self._downs, self._masks, strict=True):
            kept = (~mask).nonzero()[:, 0]
            for module, made in [*((up, True) for up in ups), (down, False)]:
                weight = names[id(module.weight)]
                axis = int(made == is_transposed(module))
                state[weight] = state[weight].index_select(axis, kept)
                if made and module.bias is not None:
                    bias = names[id(module.bias)]
                    state[bias] = state[bias][kept]
        config = type(network.config).from_dict(network.config.to_dict() | {self.layout.width: len(kept)})
        smaller = type(network)(config)
        smaller.load_state_dict(state)
        return smaller.eval()


def is_linear(module: torch.nn.Module) -> bool:
    """Whether this is torch's Linear, or GPT-2's Conv1D."""
    return isinstance(module, torch.nn.Linear) or is_transposed(module)


def is_transposed(module: torch.nn.Module) -> bool:
    """Whether the module's weight is [inputs, outputs], as in GPT-2's Conv1D."""
    return type(module).__name__ == "Conv1D"


def rows_of(module: Any) -> Tensor:
    """The weight of a linear layer as [outputs, inputs]."""
    weight: Tensor = module.weight
    return weight.T if is_transposed(module) else weight
