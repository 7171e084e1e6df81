"""The language model of an agent: a bundle, or a server."""
