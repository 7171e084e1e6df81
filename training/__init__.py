"""Everything that needs gradients, in torch: fine-tuning, gradual pruning, alignment, drafts, weight sensitivities."""

from intaglio.training.alignment import Aligned, align
from intaglio.training.pruning import Pruned, prune
from intaglio.training.sensitivity import Sensitivity, sensitivity
from intaglio.training.train_drafts import TrainedDrafts, train_hidden_transfer, train_medusa
from intaglio.training.train_early_exit import TrainedExit, TrainedLayer, train_early_exit
from intaglio.training.train_int8_only import Trained, train_int8_only

__all__ = [
    "Aligned",
    "Pruned",
    "Sensitivity",
    "Trained",
    "TrainedDrafts",
    "TrainedExit",
    "TrainedLayer",
    "align",
    "prune",
    "sensitivity",
    "train_early_exit",
    "train_hidden_transfer",
    "train_int8_only",
    "train_medusa",
]
