"""CUDA kernels: compiled by NVRTC without a GPU, launched on one, or run on the CPU by an emulation.

`python -m intaglio.plugins.cuda` prints what every kernel uses on every GPU.
"""

from intaglio.plugins.cuda.geometry import Launch, Tensor

__all__ = ["Launch", "Tensor"]
