"""A model in the list of models, as /v1/models describes it."""

from __future__ import annotations

import msgspec

from intaglio.serve.models.model import Model
from intaglio.serve.models.served_agent import ServedAgent


class ModelCard(msgspec.Struct):
    """A model of a server."""

    id: str
    created: int
    max_model_len: int | None  # tokens
    object: str = "model"
    owned_by: str = "intaglio"


class ModelList(msgspec.Struct):
    """The models of a server."""

    data: list[ModelCard]
    object: str = "list"


def card_of(model: Model | ServedAgent) -> ModelCard:
    """The description of a model, or an agent."""
    return ModelCard(model.name, model.created, None if isinstance(model, ServedAgent) else model.max_tokens)
