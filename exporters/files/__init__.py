"""Files of checkpoints: JSON and tensors, read without executing anything."""
