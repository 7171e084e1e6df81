"""Description of an encoder's checkpoint: the architecture to build, the modules after it, the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intaglio.errors import SourceError
from intaglio.exporters.checkpoints.checkpoint import Checkpoint
from intaglio.exporters.checkpoints.family import listed_architecture
from intaglio.exporters.encoders.family import EncoderFamily
from intaglio.exporters.encoders.sentence_transformers import SentenceHead, read_head
from intaglio.exporters.encoders.traced import cross_encoder_class
from intaglio.exporters.files.config import integer
from intaglio.runtime.text.pairs import NEXT_SENTENCE, reads_pairs

FOLLOWS = ("follows", "does not follow")  # the classes of BERT's head for pairs of texts, in its order


@dataclass(frozen=True)
class EncoderDescription:
    """A family, one of its architectures, and for a sentence-transformers folder the modules after it."""

    family: EncoderFamily
    architecture: str
    head: SentenceHead | None
    positions: int  # the maximum tokens of a sequence, within the window
    window: int | None  # tokens that a token attends to, if they are fewer; it is not in the graph

    @property
    def task(self) -> str:
        """The task of the bundle."""
        return self.head.task if self.head else self.family.tasks[self.architecture]

    @property
    def is_base(self) -> bool:
        """Whether it has no head of transformers, and returns hidden states."""
        return self.architecture == self.family.architecture

    def labels(self, config: Mapping[str, Any]) -> list[str]:
        """The names of the classes; see `class_labels`. A score of a decoder is one class."""
        if self.head and self.head.score:
            return ["LABEL_0"]
        return list(FOLLOWS) if self.architecture.endswith(NEXT_SENTENCE) else class_labels(config)

    def activation(self, config: Mapping[str, Any]) -> str:
        """The function from logits to scores; see `activation`. A cross-encoder's is a number for each class."""
        if self.head is None:
            return activation(config)
        named = own_activation({"sentence_transformers": {"activation_fn": self.head.activation}})
        default = "sigmoid" if len(self.labels(config)) == 1 else "identity"
        return named or own_activation(config) or default

    def reads_pairs(self, config: Mapping[str, Any]) -> bool:
        """Whether it was trained on pairs of texts."""
        return reads_pairs(self.task, self.architecture, self.labels(config) if self.task == "classify" else ())


def describe_encoder(checkpoint: Checkpoint, family: EncoderFamily) -> EncoderDescription:
    """Describe `checkpoint`. Raises `SourceError` if it is not supported.

    In a sentence-transformers folder the model without a head counts, for any head that config.json lists.
    """
    head = read_head(checkpoint.root, checkpoint.modules)
    architecture = "" if head and head.embeds else listed_architecture(checkpoint.config)
    if head and head.task == "embed-sparse":
        architecture = next((name for name, task in family.tasks.items() if task == "fill-mask"), "")
        if not architecture:
            raise SourceError(
                f"{checkpoint.folder}: SpladePooling needs the head for masked tokens, and model_type "
                f"{family.model_type} has none. Choose another model."
            )
    if head and not head.embeds:
        _check_head(checkpoint, family, head, architecture)
    positions = family.max_length(checkpoint.config)
    window = family.window(checkpoint.config) or positions
    within = min(positions, window)
    described = EncoderDescription(
        family, architecture or family.architecture, head, within, window if window < positions else None
    )
    if described.task == "classify":
        described.activation(checkpoint.config)  # which is refused before the long work begins
    return described


def _check_head(checkpoint: Checkpoint, family: EncoderFamily, head: SentenceHead, architecture: str) -> None:
    """Raise `SourceError` unless a cross-encoder's Transformer is of the class that the library loads it as."""
    expected = cross_encoder_class(family.model_type, head.transformer_task)
    if architecture != expected:
        raise SourceError(
            f"{checkpoint.folder}: config.json: architecture {architecture or 'unknown'}, expected "
            f"{expected or 'another'}, which transformers has for {head.transformer_task}. Choose another model."
        )
    size = integer(checkpoint.config, "vocab_size", 1)
    if head.score and (beyond := [token for token in head.score.tokens if token >= size]):
        raise SourceError(f"{checkpoint.root}: LogitScore: token {beyond[0]}, expected 0 to {size - 1}. Fix it.")


def class_labels(config: Mapping[str, Any]) -> list[str]:
    """The class names of config.json in the order of the logits; LABEL_0, LABEL_1, ... if it has none."""
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, dict) or not names:
        raise SourceError(f"config.json: id2label {names!r} does not map class numbers to names. Fix it.")
    try:
        return [str(names[key]) for key in sorted(names, key=int)]
    except (TypeError, ValueError) as error:
        raise SourceError(f"config.json: id2label {names!r} does not map class numbers to names. Fix it.") from error


def activation(config: Mapping[str, Any]) -> str:
    """The function from logits to scores: one class of many, several classes at once, or a plain number.

    The one that a cross-encoder of sentence-transformers names counts. Raises `SourceError` if it is not known.
    """
    if own := own_activation(config):
        return own
    named = {"multi_label_classification": "sigmoid", "regression": "identity"}.get(str(config.get("problem_type")))
    return named or ("sigmoid" if len(class_labels(config)) == 1 else "softmax")  # softmax of one class is always 1


def own_activation(config: Mapping[str, Any]) -> str | None:
    """The function that a config.json names for a cross-encoder. Raises `SourceError` if it is not known."""
    settings = config.get("sentence_transformers")
    own = settings.get("activation_fn") if isinstance(settings, dict) else None
    if own := own or config.get("sbert_ce_default_activation_function"):
        name = str(own).rpartition(".")[2].lower()
        if not str(own).startswith("torch.nn.") or name not in ("identity", "sigmoid"):
            raise SourceError(
                f"config.json: activation_fn is {str(own)[:80]!r}, expected Identity or Sigmoid of torch.nn."
            )
        return name
    return None
