"""Folders from which TensorRT's own tools build engines, without Python: graphs, plugins, and a script."""
