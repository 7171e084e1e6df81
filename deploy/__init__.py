"""Writing what other systems serve: model repositories of NVIDIA's Triton Inference Server."""

from intaglio.deploy.triton.repository import DeployedModel, DeployedTriton, deploy_triton

__all__ = ["DeployedModel", "DeployedTriton", "deploy_triton"]
