"""The manifests of Ray in examples/deploy/kubernetes: applications, commands and images fit their pods."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from manifests import DEPLOY, FOLDER, documents, pod_with, ray_pods, validate

from intaglio.cli.compress import compress_command
from intaglio.deploy.ray.settings import FRONT_DOOR, read_settings


def test_application_of_ray_fits_its_pods() -> None:
    (service,) = documents("rayservice.yaml")
    content = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = content["applications"]
    settings = read_settings(application["args"])
    settings.options()
    deployments = {each["name"]: each for each in application["deployments"]}
    assert list(deployments) == [FRONT_DOOR, *settings.models]
    for spec in ray_pods("rayservice.yaml"):
        (container,) = spec["containers"]
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        paths = [settings.api_key_file, *(model.bundle.path for model in settings.models.values())]
        assert all(any(str(path).startswith(f"{folder}/") for folder in mounted) for path in paths)
        assert {each["name"] for each in spec["volumes"]} == set(mounted.values())
        assert content["http_options"]["port"] in {each["containerPort"] for each in container["ports"]}
        assert int(container["resources"]["requests"]["cpu"]) == settings.threads
        drain = max(each["graceful_shutdown_timeout_s"] for each in deployments.values())
        assert spec["terminationGracePeriodSeconds"] > drain + 5


def test_commands_of_the_cluster_fit_its_pods() -> None:
    text = (FOLDER / "raycluster.yaml").read_text()
    (line,) = re.findall(r" -- intaglio (compress .*?)\n#\n", text.replace("\\\n#", " "), re.DOTALL)
    verb, *arguments = line.split()
    context = compress_command.make_context(verb, list(arguments))
    assert context.params["executor"] == "ray"
    (container,) = ray_pods("raycluster.yaml")[0]["containers"]
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    for path in (context.params["bundle"], context.params["output"], context.params["calibration"]):
        assert any(str(path).startswith(f"{folder}/") for folder in mounted)
    (document,) = documents("raycluster.yaml")
    assert f" -it {document['metadata']['name']}-head-" in text


def test_nodes_of_ray_run_the_image_of_the_dockerfile() -> None:
    """The version in the manifests is that which the image installs, with the extras that they need."""
    image = (DEPLOY / "Dockerfile").read_text().partition(" AS ray\n")[2]
    (extras,) = re.findall(r'"\$\{wheel\}\[([\w,]+)\]"', image)
    assert {"cpu", "serve", "storage", "ray"} <= set(extras.split(","))
    assert "--constraint /wheels/constraints.txt" in image and " wget " in image
    (pinned,) = re.findall(r"^ray==(\S+)$", (DEPLOY.parents[1] / "constraints.txt").read_text(), re.M)
    for name in ("rayservice.yaml", "raycluster.yaml"):
        (document,) = documents(name)
        assert document["spec"].get("rayClusterConfig", document["spec"])["rayVersion"] == pinned
        for spec in ray_pods(name):
            assert f"USER {spec['securityContext']['runAsUser']}\n" in image
            assert {each["image"].rpartition("/")[2].partition(":")[0] for each in spec["containers"]} == {
                "intaglio-ray"
            }


class RayGroup(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Of KubeRay's API, ray.io/v1, the fields of a HeadGroupSpec that the manifests have."""

    ray_start_params: dict[str, str]
    template: dict[str, Any]


class RayWorkerGroup(RayGroup, forbid_unknown_fields=True, rename="camel"):
    """WorkerGroupSpec."""

    group_name: str
    replicas: int
    min_replicas: int
    max_replicas: int


class RayCluster(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """RayClusterSpec."""

    ray_version: str
    head_group_spec: RayGroup
    worker_group_specs: list[RayWorkerGroup]
    enable_in_tree_autoscaling: bool = False


class RayService(msgspec.Struct, forbid_unknown_fields=True):
    """RayServiceSpec."""

    serve_config: str = msgspec.field(name="serveConfigV2")
    cluster: RayCluster = msgspec.field(name="rayClusterConfig")


def test_fields_around_the_pods_match_the_api_of_kuberay() -> None:
    (service,), (cluster,) = documents("rayservice.yaml"), documents("raycluster.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    for spec in (msgspec.convert(service["spec"], RayService).cluster, msgspec.convert(cluster["spec"], RayCluster)):
        (workers,) = spec.worker_group_specs
        assert workers.min_replicas <= workers.replicas <= workers.max_replicas
        assert not {*spec.head_group_spec.template, *workers.template} - {"metadata", "spec"}
    # A number where KubeRay has text is the usual mistake: an API server refuses it.
    cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        msgspec.convert(cluster["spec"], RayCluster)


@pytest.mark.proof
@pytest.mark.parametrize("name", ["rayservice.yaml", "raycluster.yaml"])
def test_schemas_of_kubernetes_accept_the_pods_of_ray(name: str, tmp_path: Path) -> None:
    for spec in ray_pods(name):
        found = validate(tmp_path / "pod.yaml", pod_with(spec))
        assert found.returncode == 0, found.stdout + found.stderr
    spec["containers"][0]["volumeMounts"][0]["readonly"] = True
    assert validate(tmp_path / "pod.yaml", pod_with(spec)).returncode != 0
