"""Fine-tuning in torch of what the graph passes made, by the very arithmetic that the bundle will run with."""

from intaglio.training.train_int8_only import Trained, train_int8_only

__all__ = ["Trained", "train_int8_only"]
