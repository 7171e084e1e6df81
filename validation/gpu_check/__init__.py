"""The verb `gpu-check`: whether the CUDA kernels work on the GPU of this machine, and how fast they are."""
