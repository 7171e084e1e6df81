"""CUDA kernels: compiled by NVRTC without a GPU, launched on a GPU, or emulated on the CPU.

`python -m intaglio.plugins.cuda` prints the resource usage of every kernel on every GPU.
"""

from intaglio.plugins.cuda.launching.geometry import Launch, Tensor

__all__ = ["Launch", "Tensor"]
