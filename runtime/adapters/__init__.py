"""LoRA adapters beside the weights of a decoder, one of them or none for each row of a batch."""
