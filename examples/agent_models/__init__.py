"""Small language models for agents: the conversations they are trained on, the network, the training."""
