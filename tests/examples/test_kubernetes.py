"""examples/deploy/kubernetes: arguments, probes, names and times fit the server; schemas accept the manifests."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import DEPLOY, FOLDER, documents, pod, pod_with, ray_pods, validate
from triton_server import environment

from intaglio.cli.serve import serve_command
from intaglio.serve import application
from intaglio.serve.monitoring import metrics
from intaglio.storage.cache import SETTING

MANIFESTS = ("models.yaml", "server.yaml", "autoscaling.yaml", "triton.yaml")
# Rules that are left out: versions of Debian's packages are not pinned, as the newest have the fixes; nor are those
# beside Triton, whose image brings its own.
LEFT_OUT = ("--ignore", "DL3008", "--ignore", "DL3013")


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


@pytest.mark.parametrize("name", ["server.yaml", "triton.yaml", "rayservice.yaml", "raycluster.yaml"])
def test_pods_have_minimal_privileges(name: str) -> None:
    ray = name.startswith("ray")
    for spec in ray_pods(name) if ray else [pod(name)]:
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        # Ray's autoscaler asks Kubernetes for pods.
        assert spec["automountServiceAccountToken"] is (name == "rayservice.yaml")
        for container in spec["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            written = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
            made = {"/models"} if name == "raycluster.yaml" else set()
            assert written <= {"/tmp", "/dev/shm"} | made  # noqa: S108
            assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}


def test_names_refer_to_each_other() -> None:
    (claim,) = documents("models.yaml")
    volume: dict[str, Any]
    for spec in (*ray_pods("rayservice.yaml"), *ray_pods("raycluster.yaml")):
        (volume,) = (each for each in spec["volumes"] if each["name"] == "models")
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
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


def test_bundles_at_addresses_are_cached_where_the_pod_writes() -> None:
    """The credentials are a secret that may be missing; the manifests and the command that makes it have one name."""
    text = (FOLDER / "server.yaml").read_text()
    (secret,) = re.findall(r"kubectl create secret generic (\S+) --from-env-file", text)
    for spec in (pod("server.yaml"), *ray_pods("raycluster.yaml")):
        (container,) = spec["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": secret, "optional": True}}]
        (variable,) = container["env"]
        assert variable["name"] == SETTING
        written = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
        assert any(variable["value"].startswith(f"{folder}/") for folder in written)


def test_prometheus_scrapes_the_pods_of_the_server_alone() -> None:
    """The labels that Prometheus makes of a pod, through the rules; the adapter asks for those that they write."""
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["kubernetes_sd_configs"] == [{"role": "pod"}]
    kept = {name: relabelled(job, name) for name in ("server.yaml", "triton.yaml")}
    assert kept["server.yaml"] == [{"namespace": "default", "pod": "intaglio-1"}]
    assert kept["triton.yaml"] == []
    (rule,) = documents("prometheus-adapter.yaml")[0]["rules"]["custom"]
    assert rule["resources"]["overrides"].keys() == kept["server.yaml"][0].keys()
    assert all(f'{label}!=""' in rule["seriesQuery"] for label in kept["server.yaml"][0])
    assert f'"{job["metrics_path"]}"' in Path(application.__file__).read_text()


def relabelled(job: dict[str, Any], name: str) -> list[dict[str, str]]:
    """The labels, beside those of Prometheus itself, of each port of a manifest's pods that the job scrapes."""
    template = documents(name)[0]["spec"]["template"]
    found = []
    for port in template["spec"]["containers"][0]["ports"]:
        known = {
            "__meta_kubernetes_namespace": "default",
            "__meta_kubernetes_pod_name": "intaglio-1",
            "__meta_kubernetes_pod_container_port_name": port["name"],
        }
        for label, value in template["metadata"]["labels"].items():
            known["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", label)] = value
        labels: dict[str, str] = {}
        for rule in job["relabel_configs"]:
            value = ";".join(known[source] for source in rule["source_labels"])
            if rule.get("action", "replace") == "replace":
                labels[rule["target_label"]] = value
            elif not re.fullmatch(rule["regex"], value):
                break
        else:
            found.append(labels)
    return found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool")
def test_promtool_accepts_the_configurations(tmp_path: Path) -> None:
    """Debian's build cannot discover pods: others are scraped in their place."""

    def check(text: str) -> str:
        (tmp_path / "prometheus.yaml").write_text(text)
        # The file of the key is the user's, and not looked for.
        command = ["promtool", "check", "config", "--syntax-only", tmp_path / "prometheus.yaml"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    for path in (FOLDER / "prometheus.yaml", DEPLOY / "prometheus.yml"):
        text = path.read_text().replace("kubernetes_sd_configs:\n      - role: pod", "static_configs: []")
        assert "kubernetes_sd_configs" not in text and check(text) == ""
        assert "field scrape_intervall not found" in check(text.replace("scrape_interval", "scrape_intervall"))


def test_autoscaling_reads_a_metric_of_the_server() -> None:
    (scaler,), (adapter,) = documents("autoscaling.yaml"), documents("prometheus-adapter.yaml")
    (rule,) = adapter["rules"]["custom"]
    assert scaler["spec"]["metrics"][0]["pods"]["metric"]["name"] == rule["name"]["as"]
    (name,) = re.findall(r"^([\w:]+)\{", rule["seriesQuery"])
    assert f'"{name}"' in Path(metrics.__file__).read_text()


@pytest.mark.proof
@pytest.mark.parametrize("name", MANIFESTS)
def test_schemas_of_kubernetes_accept_the_manifest(name: str, tmp_path: Path) -> None:
    found = validate(FOLDER / name)
    assert found.returncode == 0, found.stdout + found.stderr
    (tmp_path / name).write_text((FOLDER / name).read_text().replace("spec:\n", "spec:\n  misspelt: 1\n", 1))
    assert validate(tmp_path / name).returncode != 0


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
def test_classes_of_kserve_have_the_fields(tmp_path: Path) -> None:
    """KServe's package has classes made from its schema; fields of Kubernetes' own types are checked in a pod."""
    (service,) = documents("kserve.yaml")
    assert wrong_fields(service, "V1beta1InferenceService") == []
    model = service["spec"]["predictor"]["model"]
    spec = {"containers": [{"name": "model", "image": model["image"], "resources": model["resources"]}]}
    assert validate(tmp_path / "pod.yaml", pod_with(spec, **service["metadata"])).returncode == 0
    spec["containers"][0]["resources"] = {"request": {"cpu": "4"}}
    assert validate(tmp_path / "pod.yaml", pod_with(spec)).returncode != 0
    model["storageUrl"], model["protocolVersion"] = "", 2
    service["spec"]["predictor"]["minReplicas"] = "1"
    assert wrong_fields(service, "V1beta1InferenceService") == [
        "V1beta1PredictorSpec.minReplicas: '1' is no int",
        "V1beta1ModelSpec.protocolVersion: 2 is no str",
        "V1beta1ModelSpec.storageUrl: unknown",
    ]


def wrong_fields(value: dict[str, Any], kind: str) -> list[str]:
    """What KServe's class `kind` does not accept in `value` and the objects in it: names, and types of Python."""
    folders = (environment() / "lib").glob("python3.*/site-packages/kserve/models")
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower().replace("v1_beta1", "v1beta1")
    tree = ast.parse((next(folders) / f"{words}.py").read_text())
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name)
    }
    types = {tables["attribute_map"][name]: each for name, each in tables["openapi_types"].items()}
    wrong = []
    for name, each in value.items():
        if (wanted := types.get(name)) is None:
            wrong.append(f"{kind}.{name}: unknown")
        elif wanted.startswith("V1beta1"):
            wrong += wrong_fields(each, wanted)
        elif not wanted.startswith("V1") and type(each) is not {"str": str, "int": int, "bool": bool}[wanted]:
            wrong.append(f"{kind}.{name}: {each!r} is no {wanted}")
    return wrong
