"""Decoders that read images in their prompts: SmolVLM and Idefics3."""
