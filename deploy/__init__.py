"""Writing what others build from and serve: folders for TensorRT, repositories of Triton, applications of Ray Serve."""

from intaglio.deploy.ray.app_file import DeployedRay, RayDeployment, deploy_ray
from intaglio.deploy.tensorrt.folder import DeployedTensorRT, deploy_tensorrt
from intaglio.deploy.triton.manifest import DeployedModel
from intaglio.deploy.triton.repository import DeployedTriton, deploy_triton

__all__ = [
    "DeployedModel",
    "DeployedRay",
    "DeployedTensorRT",
    "DeployedTriton",
    "RayDeployment",
    "deploy_ray",
    "deploy_tensorrt",
    "deploy_triton",
]
