"""How a speech recogniser is trained, and the network that is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from intaglio.errors import UsageError
from intaglio.networks.speech.configuration import (
    ConformerConfig,
    SpeechConfig,
    SqueezeformerConfig,
    Subsampling,
    check_config,
)
from intaglio.training.language_models.options import check_choices, check_numbers

Architecture = Literal["squeezeformer", "conformer-ctc"]
Optimizer = Literal["muon", "adamw"]
Ablation = Literal["no-skip", "no-upsampling", "post-norm", "pre-norm", "no-swish"]

REDUCED_AFTER = 7 / 16  # of the blocks, the frame rate is halved: as in the larger published sizes
# Of the subsampling. The second convolution of both has as many products: 96², depthwise separable, are 9 · 32². With
# 32, word errors of a Squeezeformer were 56 instead of 52 % after 400 steps, which took 10 % less time.
CHANNELS: dict[Architecture, int] = {"squeezeformer": 96, "conformer-ctc": 32}
# The rows of the thesis' table 5.4, as options of the network.
ABLATIONS: dict[Ablation, dict[str, Any]] = {
    "no-skip": {"skip_connection": False},
    "no-upsampling": {"recover_time": False},
    "post-norm": {"normalization": "post"},
    "pre-norm": {"normalization": "pre"},
    "no-swish": {"convolution_activation": "none"},
}


@dataclass(frozen=True)
class SpeechTraining:
    """The network, the optimiser's steps, and the data in them.

    The learning rate rises over `warm_up` steps, stays for `hold` steps and then decays as 1 / step (thesis, section
    5.3); in the last part, `cool_down`, it also falls to 0. SpecAugment's masks are narrower than the thesis', as
    synthesised sentences are short.
    """

    architecture: Architecture = "squeezeformer"
    width: int = 96
    layers: int = 6  # blocks; a Squeezeformer halves the frame rate after 7 / 16 of them, until the last
    heads: int = 4
    channels: int | None = None  # of the subsampling convolutions; None: those of `CHANNELS`
    dropout: float = 0.0
    ablation: Ablation | None = None
    pieces: int = 128  # sub-word tokens; 0: characters
    letters: float = 0.5  # the share of the loss of letters after an early block (`TrainingLoss`)
    steps: int = 9000
    minutes: float | None = None  # the steps end here at the latest
    optimizer: Optimizer = "muon"  # of the matrices; AdamW of everything else
    learning_rate: float = 3e-3  # the highest
    warm_up: int = 600  # steps
    hold: int = 1000  # steps
    cool_down: float = 0.3  # the last part of the training, 0 to 1, in which the rate falls to 0
    batch_frames: int = 6000  # of 10 ms in a step, padding counted
    variants: int = 1  # of each utterance, differently mixed; 0: fresh ones in every epoch
    band_masks: int = 2
    band_width: int = 10  # bands of 80, at most
    time_masks: int = 2  # of 5 % of the frames each, at most
    mask_after: int = 3000  # steps without masks first: words are learned faster at first
    evaluate_every: int = 500  # steps
    average: int = 5  # the weights of the best evaluations; 1: the best alone
    seed: int = 0

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, tuple[str, ...]]] = {"architecture": (self.architecture, get_args(Architecture))}
        choices["optimizer"] = (self.optimizer, get_args(Optimizer))
        if self.ablation is not None:
            choices["ablation"] = (self.ablation, get_args(Ablation))
        check_choices(choices)
        names = (
            "width",
            "layers",
            "heads",
            "steps",
            "batch_frames",
            "evaluate_every",
            "average",
            "warm_up",
        )
        whole = {name.replace("_", " "): getattr(self, name) for name in names}
        if self.channels is not None:
            whole["channels"] = self.channels
        check_numbers(whole, self.learning_rate, self.seed)
        for name in ("pieces", "hold", "variants", "band_masks", "band_width", "time_masks", "mask_after"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name.replace('_', ' ')} {getattr(self, name)}: expected at least 0.")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise UsageError(f"minutes {self.minutes}: expected a positive number.")
        for name in ("dropout", "letters"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} {getattr(self, name)}: expected 0 to less than 1.")
        if not 0 <= self.cool_down <= 1:
            raise UsageError(f"cool down {self.cool_down}: expected 0 to 1.")
        if self.width % self.heads or self.width % 2:
            raise UsageError(f"width {self.width}: expected an even multiple of the {self.heads} heads.")
        if self.ablation is not None and self.architecture != "squeezeformer":
            raise UsageError(f"ablation {self.ablation}: only for squeezeformer, got {self.architecture}.")
        if self.architecture == "squeezeformer" and self.layers < 2:
            raise UsageError("layers 1: expected at least 2, as a Squeezeformer halves the frame rate between two.")

    @property
    def letters_after(self) -> int:
        """The block after which letters are read: the last before a Squeezeformer halves the rate, or the first."""
        return max(0, self._reduced_after - 1)

    @property
    def _reduced_after(self) -> int:
        """How many blocks of a Squeezeformer there are before it halves the frame rate."""
        return int(REDUCED_AFTER * self.layers)

    def config(self, tokens: int) -> SpeechConfig:
        """The network for a vocabulary of `tokens`, of which 0 is the blank. Raises `SourceError` for no network."""
        shared: dict[str, Any] = {
            "vocab_size": tokens,
            "blank_token_id": 0,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "dropout": self.dropout,
            "attention_dropout": self.dropout,
        }
        channels = CHANNELS[self.architecture] if self.channels is None else self.channels
        config: SpeechConfig
        if self.architecture == "squeezeformer":
            ablated = ABLATIONS[self.ablation] if self.ablation else {}
            subsampling = Subsampling(channels=channels)
            config = SqueezeformerConfig(
                model_type="squeezeformer",
                time_reduce_layer=self._reduced_after,
                subsampling=subsampling,
                **shared,
                **ablated,
            )
        else:
            subsampling = Subsampling(kind="convolution", channels=channels)
            config = ConformerConfig(model_type="conformer-ctc", subsampling=subsampling, **shared)
        check_config(config, "the network")
        return config
