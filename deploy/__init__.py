"""Writing what other systems serve: repositories of NVIDIA's Triton Inference Server, applications of Ray Serve."""

from intaglio.deploy.ray.app_file import DeployedRay, RayDeployment, deploy_ray
from intaglio.deploy.triton.manifest import DeployedModel
from intaglio.deploy.triton.repository import DeployedTriton, deploy_triton

__all__ = ["DeployedModel", "DeployedRay", "DeployedTriton", "RayDeployment", "deploy_ray", "deploy_triton"]
