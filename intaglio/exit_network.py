"""An early exit in torch, with a model of `transformers`: what is trained, and what an export is compared with."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor

# What stands between the last block and the head, below the model without head: as GPT-2 names it, OPT, and LLaMA and
# the families of its shape. None in a module's place: nothing.
LAST_MODULES = (("ln_f",), ("decoder.final_layer_norm", "decoder.project_out"), ("norm",))


def last_modules(base: Any) -> tuple[str, ...] | None:
    """The paths in `LAST_MODULES` that the model `base`, without its head, has; None if it has none of them."""
    return next((paths for paths in LAST_MODULES if _has(base, paths[0])), None)


def _has(base: Any, path: str) -> bool:
    try:
        attrgetter(path)(base)
    except AttributeError:
        return False
    return True


def before_head(base: Any, states: Tensor) -> Tensor:
    """What the head takes, of the states [..., width] after any block of the model `base`, which has no head.

    No hooks of the modules are called: for them, what the whole model returns is what they return.
    """
    paths = last_modules(base)
    assert paths is not None, f"no norm is known of {base.config.model_type}"
    for path in paths:
        parent, _, name = path.rpartition(".")
        module = getattr(base.get_submodule(parent), name, None)
        if module is not None:
            states = module.forward(states)
    return states
