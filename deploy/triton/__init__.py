"""Model repositories of the Triton Inference Server: what is written, and in `serving/`, what runs in the server."""
