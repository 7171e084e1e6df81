"""What needs gradients, in torch: fine-tuning, pruning on the way, drafts, and sensitivities to each weight."""

from intaglio.training.pruning import Pruned, prune
from intaglio.training.sensitivity import Sensitivity, sensitivity
from intaglio.training.train_drafts import TrainedDrafts, train_hidden_transfer, train_medusa
from intaglio.training.train_int8_only import Trained, train_int8_only

__all__ = [
    "Pruned",
    "Sensitivity",
    "Trained",
    "TrainedDrafts",
    "prune",
    "sensitivity",
    "train_hidden_transfer",
    "train_int8_only",
    "train_medusa",
]
