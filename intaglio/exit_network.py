"""An early exit in torch, with a model of `transformers`: what is trained, and what an export is compared with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

# Family -> what stands between its last block and its head, below the model without head; None in its place: nothing.
LAST_MODULES = {
    "gpt2": ("ln_f",),
    "opt": ("decoder.final_layer_norm", "decoder.project_out"),
    "llama": ("norm",),
    "mistral": ("norm",),
    "qwen2": ("norm",),
}


def before_head(base: Any, states: Tensor) -> Tensor:
    """What the head takes, of the states [..., width] after any block of the model `base`, which has no head.

    No hooks of the modules are called: for them, what the whole model returns is what they return.
    """
    for path in LAST_MODULES[base.config.model_type]:
        parent, _, name = path.rpartition(".")
        module = getattr(base.get_submodule(parent), name, None)
        if module is not None:
            states = module.forward(states)
    return states
