"""examples/deploy/kubernetes: arguments, probes, names and times fit the server; schemas accept the manifests."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from triton_server import environment

from intaglio.cli.serve import serve_command
from intaglio.deploy.ray.settings import FRONT_DOOR, read_settings
from intaglio.serve import application
from intaglio.serve.monitoring import metrics

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
FOLDER = DEPLOY / "kubernetes"
MANIFESTS = ("models.yaml", "server.yaml", "autoscaling.yaml", "triton.yaml")
# Rules that are left out: versions of Debian's packages are not pinned, as the newest have the fixes; nor are those
# beside Triton, whose image brings its own.
LEFT_OUT = ("--ignore", "DL3008", "--ignore", "DL3013")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = documents(name)[0]["spec"]["template"]["spec"]
    return spec


def test_server_accepts_the_arguments() -> None:
    container = pod("server.yaml")["containers"][0]
    context = serve_command.make_context("serve", list(container["args"]))
    mounted = [each["mountPath"] for each in container["volumeMounts"]]
    for path in (*context.params["bundles"], str(context.params["api_key_file"])):
        assert any(path.startswith(f"{folder}/") for folder in mounted)
    assert context.params["threads"] == int(container["resources"]["requests"]["cpu"])


def test_pod_is_ended_after_the_grace_period() -> None:
    spec = pod("server.yaml")
    arguments = spec["containers"][0]["args"]
    grace = float(arguments[arguments.index("--grace") + 1])
    sleep = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > grace + sleep + 5


def test_probes_ask_for_paths_of_the_server() -> None:
    container = pod("server.yaml")["containers"][0]
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    source = Path(application.__file__).read_text()
    assert all(f'"{path}"' in source for path in paths)


@pytest.mark.parametrize("name", ["server.yaml", "triton.yaml"])
def test_pods_have_minimal_privileges(name: str) -> None:
    spec = pod(name)
    assert spec["securityContext"]["runAsNonRoot"] and not spec["automountServiceAccountToken"]
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
        assert written <= {"/tmp", "/dev/shm"}  # noqa: S108
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}


def test_names_refer_to_each_other() -> None:
    (claim,) = documents("models.yaml")
    for name in ("server.yaml", "triton.yaml"):
        deployment, service, *others = documents(name)
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
        assert all(each["spec"]["selector"]["matchLabels"] == labels for each in others)
        volume = next(each for each in pod(name)["volumes"] if each["name"] == "models")
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        ports = {each["name"] for each in pod(name)["containers"][0]["ports"]}
        assert {each["targetPort"] for each in service["spec"]["ports"]} <= ports
    (scaler,) = documents("autoscaling.yaml")
    assert scaler["spec"]["scaleTargetRef"]["name"] == documents("server.yaml")[0]["metadata"]["name"]
    (service,) = documents("kserve.yaml")
    assert service["spec"]["predictor"]["model"]["storageUri"].startswith(f"pvc://{claim['metadata']['name']}/")


def test_application_of_ray_fits_its_pods() -> None:
    (service,) = documents("rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    content = yaml.safe_load(service["spec"]["serveConfigV2"])
    (application,) = content["applications"]
    settings = read_settings(application["args"])
    settings.options()
    deployments = {each["name"]: each for each in application["deployments"]}
    assert list(deployments) == [FRONT_DOOR, *settings.models]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        mounted = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        paths = [settings.api_key_file, *(model.bundle.path for model in settings.models.values())]
        assert all(any(str(path).startswith(f"{folder}/") for folder in mounted) for path in paths)
        assert {each["name"] for each in spec["volumes"]} == set(mounted.values())
        assert content["http_options"]["port"] in {each["containerPort"] for each in container["ports"]}
        assert int(container["resources"]["requests"]["cpu"]) == settings.threads
        drain = max(each["graceful_shutdown_timeout_s"] for each in deployments.values())
        assert spec["terminationGracePeriodSeconds"] > drain + 5
    (claim,) = documents("models.yaml")
    assert spec["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert f"ray=={cluster['rayVersion']}\n" in (DEPLOY.parents[1] / "constraints.txt").read_text()


class RayGroup(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Of KubeRay's API, ray.io/v1, the fields of a HeadGroupSpec that the manifest has."""

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
    enable_in_tree_autoscaling: bool
    head_group_spec: RayGroup
    worker_group_specs: list[RayWorkerGroup]


class RayService(msgspec.Struct, forbid_unknown_fields=True):
    """RayServiceSpec."""

    serve_config: str = msgspec.field(name="serveConfigV2")
    cluster: RayCluster = msgspec.field(name="rayClusterConfig")


def test_fields_around_the_pods_of_ray_are_those_of_kuberay() -> None:
    (service,) = documents("rayservice.yaml")
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    (workers,) = msgspec.convert(service["spec"], RayService).cluster.worker_group_specs
    assert workers.min_replicas <= workers.replicas <= workers.max_replicas
    # A number where KubeRay has text is the usual mistake: an API server refuses it.
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        msgspec.convert(service["spec"], RayService)


def test_autoscaling_reads_a_metric_of_the_server() -> None:
    (scaler,), (adapter,) = documents("autoscaling.yaml"), documents("prometheus-adapter.yaml")
    (rule,) = adapter["rules"]["custom"]
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    (name,) = re.findall(r"^([\w:]+)\{", rule["seriesQuery"])
    assert f'"{name}"' in Path(metrics.__file__).read_text()


@pytest.mark.proof
@pytest.mark.parametrize("name", MANIFESTS)
def test_schemas_of_kubernetes_accept_the_manifest(name: str, tmp_path: Path) -> None:
    def validate(path: Path) -> subprocess.CompletedProcess[str]:
        command = [environment() / "bin" / "kubernetes-validate", "--strict", path]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = validate(FOLDER / name)
    assert found.returncode == 0, found.stdout + found.stderr
    (tmp_path / name).write_text((FOLDER / name).read_text().replace("spec:\n", "spec:\n  misspelt: 1\n", 1))
    assert validate(tmp_path / name).returncode != 0


@pytest.mark.proof
def test_schemas_of_kubernetes_accept_the_pods_of_ray(tmp_path: Path) -> None:
    (service,) = documents("rayservice.yaml")
    cluster = service["spec"]["rayClusterConfig"]
    for number, group in enumerate((cluster["headGroupSpec"], *cluster["workerGroupSpecs"])):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, "spec": group["template"]["spec"]}
        (tmp_path / f"{number}.yaml").write_text(yaml.safe_dump(pod))
        command = [environment() / "bin" / "kubernetes-validate", "--strict", tmp_path / f"{number}.yaml"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.proof
def test_linter_accepts_the_images(tmp_path: Path) -> None:
    def lint(path: Path) -> subprocess.CompletedProcess[str]:
        command = [environment() / "bin" / "hadolint", *LEFT_OUT, path]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = lint(DEPLOY / "Dockerfile")
    assert (found.returncode, found.stdout) == (0, "")
    (tmp_path / "Dockerfile").write_text((DEPLOY / "Dockerfile").read_text().replace("${wheel}[", "$wheel["))
    assert lint(tmp_path / "Dockerfile").returncode != 0


@pytest.mark.proof
def test_classes_of_kserve_have_the_fields() -> None:
    """KServe's package has no schema, but classes made from it; the fields of Kubernetes' own types are not checked."""
    (service,) = documents("kserve.yaml")
    assert unknown_fields(service, "V1beta1InferenceService") == []
    service["spec"]["predictor"]["model"]["storageUrl"] = ""
    assert unknown_fields(service, "V1beta1InferenceService") == ["V1beta1ModelSpec.storageUrl"]


def unknown_fields(value: dict[str, Any], kind: str) -> list[str]:
    """The fields of `value`, and of the objects in it, that KServe's class `kind` does not have."""
    folders = (environment() / "lib").glob("python3.*/site-packages/kserve/models")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower().replace("v1_beta1", "v1beta1")
    tree = ast.parse((next(folders) / f"{words}.py").read_text())
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name)
    }
    types = {tables["attribute_map"][name]: each for name, each in tables["openapi_types"].items()}
    wrong = [f"{kind}.{name}" for name in value if name not in types]
    for name, each in value.items():
        if types.get(name, "").startswith("V1beta1"):
            wrong += unknown_fields(each, types[name])
    return wrong
