"""Other versions of the ONNX operators, raised to the one that passes expect."""
