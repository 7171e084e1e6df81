"""examples/deploy: its commands are valid for `intaglio serve`, its unit file parses, its wheel serves."""

from __future__ import annotations

import configparser
import fnmatch
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import click
import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "examples" / "deploy"
UNIT = DEPLOY / "intaglio.service"
GRACE = "--grace"


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=", comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def images() -> dict[str, dict[str, str]]:
    """Stage of the Dockerfile -> instruction -> arguments of its last occurrence."""
    text = re.sub(r"\\\n\s*", " ", (DEPLOY / "Dockerfile").read_text())
    stages: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        instruction, _, arguments = line.partition(" ")
        if instruction == "FROM":
            stages[arguments.split()[-1]] = current = {}
        if line and not line.startswith("#") and stages:
            current[instruction] = arguments
    return stages


def entrypoints() -> dict[str, list[str]]:
    return {
        name: [*json.loads(stage["ENTRYPOINT"]), *json.loads(stage["CMD"])]
        for name, stage in images().items()
        if "ENTRYPOINT" in stage
    }


def exec_start() -> list[str]:
    """The command of the unit file with the values of its environment."""
    service = unit()["Service"]
    name, _, bundles = service["Environment"].partition("=")
    words = service["ExecStart"].replace(f"${name}", bundles).replace("$OPTIONS", "--rows 16")
    return shlex.split(words.replace("${CREDENTIALS_DIRECTORY}", "/run/credentials/intaglio.service"))


def written_commands() -> list[list[str]]:
    """Every `intaglio serve` command of the pages, and the container arguments in them."""
    found = []
    for page in (DEPLOY / "README.md", ROOT / "docs" / "serving.md"):
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        for line in text.splitlines():
            if re.match(r"    (\$ )?intaglio serve\b", line):
                found.append(shlex.split(line.strip().removeprefix("$ "), comments=True))
            elif match := re.match(r"    docker run .* intaglio( .*)?$", line):
                own = json.loads(images()["cpu"]["ENTRYPOINT"])
                found.append([*own, *(shlex.split(match[1]) if match[1] else ["/bundles/model"])])
    return found


COMMANDS = [*entrypoints().values(), exec_start(), *written_commands()]


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_server_accepts_the_deployed_options(command: list[str]) -> None:
    if importlib.util.find_spec("intaglio.cli.serve") is None:
        pytest.skip("no intaglio serve")
    from intaglio.cli.serve import serve_command

    program, verb, *arguments = command
    assert (Path(program).name, verb) == ("intaglio", "serve")
    context = serve_command.make_context("serve", list(arguments))
    assert context.params["bundles"]
    with pytest.raises(click.UsageError):
        serve_command.make_context("serve", [*arguments, "--no-such-option"])


def test_stop_waits_for_the_grace_period() -> None:
    service = unit()["Service"]
    command = exec_start()
    grace = float(command[command.index(GRACE) + 1])
    assert float(service["TimeoutStopSec"]) > grace + 5
    assert service["KillSignal"] == "SIGTERM"
    assert "kill" not in service.get("KillMode", "")


def test_service_has_minimal_privileges() -> None:
    service = unit()["Service"]
    for name, value in {
        "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
        "Restart": "on-failure", "ProtectHome": "yes", "PrivateTmp": "yes",
    }.items():  # fmt: skip
        assert service[name] == value
    assert service["MemoryMax"]
    assert service["LoadCredential"].partition(":")[0] == "keys"
    assert "ReadWritePaths" not in service


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_accepts_the_unit_file(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/intaglio/bin/intaglio", "/bin/true")  # the program must exist
    (tmp_path / "intaglio.service").write_text(text)
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "intaglio.service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    about_ours = [line for line in found.stderr.splitlines() if "intaglio.service" in line]
    assert about_ours == []
    (tmp_path / "broken.service").write_text(text.replace("ProtectSystem=strict", "ProtectSystem=sometimes"))
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "broken.service"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "protect system value" in found.stderr


def test_images_run_without_root_and_report_their_health() -> None:
    stages = images()
    assert stages.keys() == {"wheel", "cpu", "gpu", "triton", "ray"}
    assert stages["triton"]["USER"] != "root" and "v2/health/ready" in stages["triton"]["HEALTHCHECK"]
    for name in ("cpu", "gpu"):
        assert stages[name]["USER"] == "10001"
        assert stages[name]["STOPSIGNAL"] == "SIGTERM"
        assert "useradd" in stages[name]["RUN"] and "g++" not in stages[name]["RUN"]
        check = json.loads(stages[name]["HEALTHCHECK"].partition("CMD ")[2])
        compile(check[2], "health check", "exec")
        command = entrypoints()[name]
        assert f"127.0.0.1:{command[command.index('--port') + 1]}/health" in check[2]
        assert stages[name]["EXPOSE"] == command[command.index("--port") + 1]


def test_prometheus_scrapes_the_metrics() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8000"]


def sent() -> list[Path]:
    """The tracked files that reach the builder by the rules of .dockerignore, where the last match wins."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    def matches(path: Path, rule: str) -> bool:
        candidates = [str(path), *map(str, path.parents)]
        if rule.startswith("**/"):
            return any(fnmatch.fnmatch(part, rule[3:]) for part in path.parts)
        return rule == "*" or rule in candidates

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for path in map(Path, listed.splitlines()):
        last = [rule for rule in rules if matches(path, rule.removeprefix("!"))][-1]
        if last.startswith("!"):
            found.append(path)
    return found


def test_every_module_is_sent_to_the_image() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    beside = ("tests", "examples", "benchmarks", "docs")
    modules = {Path(name) for name in listed.split() if Path(name).parts[0] not in beside}
    assert len(modules) > 400 and not modules - set(map(Path, sent()))


@pytest.mark.proof  # test_every_module_is_sent_to_the_image; in test_build a wheel without compiler has every module
def test_wheel_of_the_image_serves_in_a_fresh_environment(tmp_path: Path) -> None:
    source, site = tmp_path / "source", sysconfig.get_path("purelib")
    for path in sent():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, source / path)
    assert not (source / "tests").exists() and not (source / "examples").exists()
    python = [sys.executable, "-m"]
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, "."]
    without_compiler = os.environ | {"CXX": "/no/compiler", "PYTHONPATH": ""}
    subprocess.run([*python, *build], cwd=source, env=without_compiler, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("intaglio-*.whl")
    subprocess.run([*python, "venv", "--without-pip", tmp_path / "venv"], check=True)
    target = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    install = ["pip", "--python", tmp_path / "venv", "install", "--quiet", "--no-deps", wheel]
    subprocess.run([*python, *install], check=True, capture_output=True)
    (target / "libraries.pth").write_text(site)  # packages of the extras are installed already
    program = tmp_path / "venv" / "bin" / "intaglio"
    found = subprocess.run(
        [program, "serve", "--help"], cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert found.stdout.startswith("Usage: intaglio serve")
    where = "import intaglio.serve.application as a, intaglio.runtime; print(a.__file__)"
    found = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-P", "-c", where], cwd=tmp_path, env={}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert Path(found.stdout.strip()).is_relative_to(target)
