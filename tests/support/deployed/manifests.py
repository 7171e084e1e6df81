"""The manifests in examples/deploy/kubernetes, and the schemas of Kubernetes that check them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml
from triton_server import environment

DEPLOY = Path(__file__).parents[3] / "examples" / "deploy"
FOLDER = DEPLOY / "kubernetes"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = documents(name)[0]["spec"]["template"]["spec"]
    return spec


def ray_pods(name: str) -> list[dict[str, Any]]:
    """The pods of a RayCluster or a RayService: the head's, and those of its workers."""
    (document,) = documents(name)
    cluster = document["spec"].get("rayClusterConfig", document["spec"])
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def pod_with(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"} | metadata, "spec": spec}


def validate(path: Path, document: object = None) -> subprocess.CompletedProcess[str]:
    """Check a manifest with the schemas of Kubernetes; `document`: written to it before."""
    if document is not None:
        path.write_text(yaml.safe_dump(document))
    command = [environment() / "bin" / "kubernetes-validate", "--strict", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)
