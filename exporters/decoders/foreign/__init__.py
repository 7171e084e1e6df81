"""Decoders that other tools exported to ONNX, rewritten to take a step as ours do."""
