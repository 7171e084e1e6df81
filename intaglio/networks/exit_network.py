"""An early exit in torch, on a `transformers` model: used by training, and as the reference of an export."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor

# The modules between the last block and the head, by their paths in the model without head: in GPT-2, in OPT, and in
# LLaMA and similar families. If a module is None, there is nothing.
LAST_MODULES = (("ln_f",), ("decoder.final_layer_norm", "decoder.project_out"), ("norm",))


def last_modules(base: Any) -> tuple[str, ...] | None:
    """The paths in `LAST_MODULES` that exist in the model `base` (without head), or None."""
    return next((paths for paths in LAST_MODULES if _has(base, paths[0])), None)


def _has(base: Any, path: str) -> bool:
    try:
        attrgetter(path)(base)
    except AttributeError:
        return False
    return True


def before_head(base: Any, states: Tensor) -> Tensor:
    """The head's input for the states [..., width] after any block of the model `base` (without head).

    The modules' hooks are not called: they record only the values of the whole model.
    """
    paths = last_modules(base)
    assert paths is not None, f"unknown final norm of {base.config.model_type}"
    for path in paths:
        parent, _, name = path.rpartition(".")
        module = getattr(base.get_submodule(parent), name, None)
        if module is not None:
            states = module.forward(states)
    return states
