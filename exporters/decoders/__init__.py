"""Decoders: their modules, caches and operators, the tracer, and graphs that other tools wrote."""
