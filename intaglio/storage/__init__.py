"""Bundles at addresses, such as s3://models/llama: read through a local cache, written whole or not at all."""
