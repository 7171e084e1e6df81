"""The bundle: its manifest, its ONNX files, and reading them in little memory."""
