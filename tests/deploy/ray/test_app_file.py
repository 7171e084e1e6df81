"""The file of an application is written whole or not at all, and Ray accepts it."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lora_adapters import save_adapter

from intaglio.deploy import deploy_ray
from intaglio.deploy.ray.settings import adapter_hashes
from intaglio.errors import UsageError
from intaglio.files.hashes import sha256

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]
RAY = importlib.util.find_spec("ray") is not None

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of Ray's own modules
needs_ray = pytest.mark.skipif(not RAY, reason="Ray is not installed: make ray-test")


@pytest.mark.skipif(RAY, reason="Ray is installed")
def test_missing_ray_names_the_extra(intaglio: Run, tiny_bundle: Path, tmp_path: Path) -> None:
    code, _, err = intaglio("deploy", "ray", tiny_bundle, "-o", tmp_path / "app.yaml")
    assert code == 2 and "pip install 'intaglio[ray]'" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "app.yaml").exists()


@needs_ray
def test_file_has_all_that_the_options_say(
    intaglio: Run, tiny_bundle: Path, trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    draft, target = trained_pair
    (tmp_path / "keys.txt").write_text("a-key\n")
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("")
    output = tmp_path / "app.yaml"
    code, out, err = intaglio(
        "deploy", "ray", tiny_bundle, f"chat={target}", "-o", output, "--json", "--min-replicas", 2,
        "--max-replicas", 5, "--threads", 3, "--cache-bits", 8, "--draft", draft, "--rows", 4, "--max-waiting", 9,
        "--grace", 7, "--port", 9000, "--host", "0.0.0.0",  # noqa: S104
        "--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem",
        "--api-key-file", tmp_path / "keys.txt", "--mounted-at", "/models",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out)["models"] == [
        {"name": "tiny", "bundle": "/models/tiny", "task": "embed", "min_replicas": 2, "max_replicas": 5},
        {"name": "chat", "bundle": f"/models/{target.name}", "task": "generate", "min_replicas": 2, "max_replicas": 5},
    ]  # fmt: skip
    content = yaml.safe_load(output.read_text())
    assert content["http_options"] == {
        "host": "0.0.0.0", "port": 9000,  # noqa: S104
        "ssl_certfile": str(tmp_path / "cert.pem"), "ssl_keyfile": str(tmp_path / "key.pem"),
    }  # fmt: skip
    (application,) = content["applications"]
    args = application["args"]
    assert "a-key" not in output.read_text() and args["api_key_file"] == str(tmp_path / "keys.txt")
    assert (args["limits"]["rows"], args["limits"]["max_waiting"], args["threads"]) == (4, 9, 3)
    assert args["models"]["chat"] == {
        "bundle": {"path": f"/models/{target.name}", "sha256": sha256(target / "bundle.json")},
        "draft": {"path": f"/models/{draft.name}", "sha256": sha256(draft / "bundle.json")},
        "cache_bits": 8,
    }
    assert args["models"]["tiny"].keys() == {"bundle"}
    door, tiny, chat = application["deployments"]
    assert door["name"] == "front-door" and {each["graceful_shutdown_timeout_s"] for each in (door, tiny, chat)} == {12}
    assert chat["autoscaling_config"] == {"min_replicas": 2, "max_replicas": 5, "target_ongoing_requests": 4}
    assert (chat["max_ongoing_requests"], chat["max_queued_requests"], chat["ray_actor_options"]) == (
        8,
        9,
        {"num_cpus": 3},
    )
    assert chat["request_router_config"]["request_router_class"].endswith("PrefixRouter")
    assert "request_router_config" not in tiny


@needs_ray
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_replicas": 0}, "--min-replicas 0, --max-replicas 0: expected 1 <= minimum <= maximum"),
        ({"min_replicas": 3, "max_replicas": 2}, "--min-replicas 3, --max-replicas 2"),
        ({"threads": 0}, "--threads 0: expected at least 1"),
        ({"port": 0}, "--port 0: expected at least 1"),
        ({"mounted_at": "models"}, "--mounted-at models: expected an absolute path"),
        ({"tls_cert": "cert.pem"}, "--tls-cert and --tls-key belong together"),
        ({"strategy": "greedy"}, "--strategy needs exactly one decoder, got 0"),
        ({"draft": "BUNDLE"}, "--draft needs exactly one decoder, got 0"),
        ({"adapter": ["sql=BUNDLE"]}, "--adapter needs exactly one decoder, got 0"),
        ({"prompt_name": "other"}, "other"),
        ({"cache_bits": 8}, "--cache-bits is for decoders, and none is given"),
        ({"target": "fpga"}, "target 'fpga'"),
    ],
)
def test_wrong_options_write_nothing(tiny_bundle: Path, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    given = {name: tiny_bundle if value == "BUNDLE" else value for name, value in options.items()}
    with pytest.raises(UsageError, match=words):
        deploy_ray([tiny_bundle], tmp_path / "app.yaml", **given)
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_adapters_of_the_decoder_are_written_with_their_hashes(
    intaglio: Run, make_decoder: Callable[..., tuple[Path, Path]], tiny_bundle: Path, tmp_path: Path
) -> None:
    checkpoint, bundle = make_decoder("llama", max_position_embeddings=128)
    adapter, output = save_adapter(checkpoint, tmp_path / "sql-lora"), tmp_path / "app.yaml"
    deploy = ("deploy", "ray", f"chat={bundle}", tiny_bundle, "-o", output, "--mounted-at", "/models", "--adapter")
    assert intaglio(*deploy, f"sql={adapter}")[0] == 0
    models = yaml.safe_load(output.read_text())["applications"][0]["args"]["models"]
    assert models["chat"]["adapters"] == {"sql": {"path": "/models/sql-lora", "sha256": adapter_hashes(adapter)}}
    assert "adapters" not in models["tiny"]
    for given, words in ((f"a:b={adapter}", "without a colon"), (tmp_path / "none", "no such folder")):
        code, _, err = intaglio(*deploy, given, "--force")
        assert code == 2 and words in err and len(err.splitlines()) == 1


@needs_ray
@pytest.mark.parametrize("name", ["front-door", "a#b", "-a"])
def test_wrong_name_is_refused(tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="Write NAME=PATH"):
        deploy_ray([f"{name}={tiny_bundle}"], tmp_path / "app.yaml")


@needs_ray
def test_file_is_replaced_by_force_alone(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text("other")
    with pytest.raises(UsageError, match="--force"):
        deploy_ray([tiny_bundle], tmp_path / "app.yaml")
    assert (tmp_path / "app.yaml").read_text() == "other"
    deploy_ray([tiny_bundle], tmp_path / "app.yaml", force=True)
    assert yaml.safe_load((tmp_path / "app.yaml").read_text())["applications"]
    assert [path.name for path in tmp_path.iterdir()] == ["app.yaml"]


@needs_ray
def test_file_that_ray_refuses_gets_no_name(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intaglio.deploy.ray.app_file.UNLIMITED", 0)
    with pytest.raises(UsageError, match="Ray Serve does not accept"):
        deploy_ray([tiny_bundle], tmp_path / "app.yaml")
    assert list(tmp_path.iterdir()) == []


@needs_ray
def test_manifest_of_kubernetes_is_what_the_command_writes(
    tiny_bundle: Path, trained_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """Apart from the hashes; the manifest leaves out the limits that are defaults."""
    for name, bundle in (("chat", trained_pair[1]), ("minilm", tiny_bundle)):
        shutil.copytree(bundle, tmp_path / name)
    (tmp_path / "keys.txt").write_text("a-key")
    file = tmp_path / "app.yaml"
    deploy_ray(
        [tmp_path / "chat", tmp_path / "minilm"], file, host="0.0.0.0", threads=4, max_replicas=4,  # noqa: S104
        api_key_file=tmp_path / "keys.txt", mounted_at="/models",
    )  # fmt: skip
    (service,) = yaml.safe_load_all((ROOT / "examples" / "deploy" / "kubernetes" / "rayservice.yaml").read_text())
    manifest, written = (yaml.safe_load(text) for text in (service["spec"]["serveConfigV2"], file.read_text()))
    args, expected = (each["applications"][0].pop("args") for each in (manifest, written))
    assert manifest == written
    assert args.pop("limits").items() <= expected.pop("limits").items()
    for each in (args, expected):
        each["api_key_file"] = Path(each["api_key_file"]).name
        for model in each["models"].values():
            del model["bundle"]["sha256"]
    assert args == expected
