"""The Transformer blocks of a model of `transformers`, and hooks that change states on their way. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from intaglio.errors import SourceError

Change = Callable[[Tensor], Tensor]  # of states [batch, tokens, width]


def blocks_path(model: Any) -> str:
    """The path of the list of a model's Transformer blocks. Raises `SourceError` if it has none."""
    depth = model.config.get_text_config().num_hidden_layers
    base = model.get_decoder() if hasattr(model, "get_decoder") else model  # beside it there may be blocks for images
    inside = {id(each) for each in base.modules()}
    found = [
        (id(each) not in inside, str(name))
        for name, each in model.named_modules()
        if isinstance(each, nn.ModuleList) and len(each) == depth
    ]
    if not found:
        raise SourceError(f"{type(model).__name__} has no list of {depth} blocks, so it is not supported.")
    _, path = min(found, key=lambda each: each[0])
    return path


def blocks(model: Any) -> nn.ModuleList:
    """The list of a model's Transformer blocks."""
    found = model.get_submodule(blocks_path(model))
    assert isinstance(found, nn.ModuleList)
    return found


@contextmanager
def before(module: nn.Module, change: Change) -> Iterator[None]:
    """While this context is active, `change` computes the states that `module` takes."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        states = change(states_of(module, args, kwargs))
        return ((states, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": states})

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def after(module: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """While this context is active, `change` computes the states that `module` returns, from its input and output."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        states = states_of(module, args, kwargs)
        if isinstance(output, tuple):
            return change(states, output[0]), *output[1:]
        return change(states, output)

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def states_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The states among the inputs of a block. Raises `NotImplementedError` if they have other axes."""
    states = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(states, Tensor) or states.ndim != 3:
        raise NotImplementedError(f"{type(module).__name__} takes no states [batch, tokens, width]")
    return states
