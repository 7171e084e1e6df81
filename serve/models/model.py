"""The models of a server: their names, and the workers that run them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from intaglio.bundle.bundle import Bundle
from intaglio.errors import BundleError
from intaglio.runtime.generation.requests.chat import ChatTemplate
from intaglio.runtime.generation.worker import DecoderWorker
from intaglio.runtime.vision.image_file import MOST_PIXELS
from intaglio.serve.models.served_agent import ServedAgent
from intaglio.serve.responses.errors import ApiError, invalid
from intaglio.serve.workers.encoder_worker import EncoderWorker
from intaglio.serve.workers.speech_worker import SpeechWorker


@dataclass(frozen=True)
class DecoderModel:
    """A model that generates text: a decoder, or an encoder-decoder."""

    name: str
    bundle: Bundle
    worker: DecoderWorker
    created: int = field(default_factory=lambda: int(time.time()))
    adapter: str | None = None  # name of one of its adapters; None: the model alone
    max_image_pixels: int = MOST_PIXELS  # of an image in a prompt

    @property
    def reads_images(self) -> bool:
        """Whether prompts may have images."""
        return self.bundle.manifest.image_encoder is not None

    @property
    def adapted(self) -> list[DecoderModel]:
        """The same with each of its adapters, under its name and the adapter's: "chat:sql"."""
        names = self.worker.generator.adapter_names if self.adapter is None else ()
        return [replace(self, name=f"{self.name}:{name}", adapter=name) for name in names]

    @property
    def vocabulary(self) -> int:
        """Token ids are below this."""
        return self.worker.generator.vocabulary

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a prompt and its text together."""
        return self.worker.generator.limit

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises `ApiError` for a model without one."""
        try:
            return self.worker.prompts.template
        except BundleError as error:
            raise invalid(f"model {self.name!r} has no usable chat template: use /v1/completions.", "model") from error


@dataclass(frozen=True)
class EncoderModel:
    """A model that computes embeddings or classes of texts."""

    name: str
    bundle: Bundle
    worker: EncoderWorker
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens of a text."""
        manifest = self.bundle.manifest
        sequence = manifest.axes.get("sequence")
        lengths = (manifest.truncation, sequence.maximum if sequence else None)
        return min((length for length in lengths if length is not None), default=None)


@dataclass(frozen=True)
class SpeechModel:
    """A model that transcribes recordings."""

    name: str
    bundle: Bundle
    worker: SpeechWorker
    created: int = field(default_factory=lambda: int(time.time()))
    max_tokens: int | None = None  # a recording has seconds, not tokens


Model = DecoderModel | EncoderModel | SpeechModel
Kind = TypeVar("Kind", DecoderModel, EncoderModel, SpeechModel)


class Models:
    """The models of a server, by name, and its agents, which are added once its event loop runs."""

    def __init__(self, models: Mapping[str, Model]):
        self.by_name = dict(models)  # each with a worker of its own
        self.adapted = {each.name: each for model in self.decoders for each in model.adapted}
        self.agents: dict[str, ServedAgent] = {}

    @property
    def decoders(self) -> list[DecoderModel]:
        """Those that generate text."""
        return [model for model in self.by_name.values() if isinstance(model, DecoderModel)]

    @property
    def recognisers(self) -> list[SpeechModel]:
        """Those that transcribe recordings."""
        return [model for model in self.by_name.values() if isinstance(model, SpeechModel)]

    def decoder(self, name: str) -> DecoderModel:
        """The decoder of this name. Raises `ApiError` if there is none."""
        return self._of_kind(name, DecoderModel, "generates no text")

    def encoder(self, name: str) -> EncoderModel:
        """The encoder of this name. Raises `ApiError` if there is none."""
        return self._of_kind(name, EncoderModel, "computes no embeddings or classes")

    def sparse(self) -> EncoderModel:
        """The only sparse encoder. Raises `ApiError` if there is none, or there are several."""
        encoders = [model for model in self.by_name.values() if isinstance(model, EncoderModel)]
        found = [model for model in encoders if model.worker.manifest.task == "embed-sparse"]
        if len(found) != 1:
            raise invalid(f"model: the server has {len(found)} sparse encoders, expected one. Name a model.", "model")
        return found[0]

    def speech(self, name: str) -> SpeechModel:
        """The speech recogniser of this name. Raises `ApiError` if there is none."""
        return self._of_kind(name, SpeechModel, "transcribes no recordings")

    def _of_kind(self, name: str, kind: type[Kind], lacking: str) -> Kind:
        """The model of this name; the error for one of another kind than is needed says what it is `lacking`."""
        model = self.find(name)
        if isinstance(model, kind):
            return model
        does = "generates text" if isinstance(model, DecoderModel) else f"computes {model.bundle.manifest.task}"
        if isinstance(model, SpeechModel):
            does = "transcribes recordings at /v1/audio/transcriptions"
        raise invalid(f"model {model.name!r} {does}, it {lacking}.", "model")

    def find(self, name: str) -> Model:
        """The model of this name. Raises `ApiError` if there is none."""
        if name in self.agents:
            raise invalid(f"model {name!r} is an agent. Send the request to /v1/chat/completions.", "model")
        found = self.by_name.get(name) or self.adapted.get(name)
        if found is None:
            raise unknown_model(name, [*self.by_name, *self.adapted, *self.agents])
        return found

    @property
    def alive(self) -> bool:
        """Whether all models serve requests."""
        return all(model.worker.alive for model in self.by_name.values())

    def close(self) -> None:
        """End all requests, and release the models."""
        for model in self.by_name.values():
            model.worker.close()


def unknown_model(name: str, served: Sequence[str]) -> ApiError:
    """The error for a model that is not among the `served` ones."""
    message = f"model {name[:100]!r} does not exist. This server has: {', '.join(served)}."
    return ApiError(404, message, param="model", code="model_not_found")


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
