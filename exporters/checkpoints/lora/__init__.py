"""Adapters of peft, low-rank changes of a model's weights: read, and merged into the weights of a checkpoint."""
