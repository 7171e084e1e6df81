"""The launch of a CUDA kernel: its grid, shared memory and scalars, from the shapes of a node's inputs."""
