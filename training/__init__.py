"""What needs gradients, in torch: fine-tuning, pruning on the way, and how sensitive the loss is to each weight."""

from intaglio.training.pruning import Pruned, prune
from intaglio.training.sensitivity import Sensitivity, sensitivity
from intaglio.training.train_int8_only import Trained, train_int8_only

__all__ = ["Pruned", "Sensitivity", "Trained", "prune", "sensitivity", "train_int8_only"]
