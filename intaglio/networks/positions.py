"""Where the models of `transformers` begin to count the tokens of a text."""

from __future__ import annotations

from typing import Any


def first_position(model: Any) -> int:
    """The number that the first token of a text has: in the way of RoBERTa, that after the padding token's id."""
    counted = (each for each in model.modules() if hasattr(each, "create_position_ids_from_input_ids"))
    return next((int(each.padding_idx) + 1 for each in counted), 0)
