"""What is in `deploy/` is well-formed, and what it names exists: Dockerfile, compose file, Helm chart, systemd unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from holdfast import __version__
from holdfast.config.load import load
from holdfast.registry import Registry
from tests.servers.processes import HOW_TO_INSTALL, cache_folder

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "holdfast"
HELM = "helm-v3.19.0"
KUBERNETES = "1.34"


# --- Docker ----------------------------------------------------------------------------------------------------------


def test_the_dockerfile_has_no_lint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "docker" / "Dockerfile"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_has_what_it_copies_and_runs_as_nobody_special() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert "connector install kafka" in text


# --- compose ---------------------------------------------------------------------------------------------------------


def test_the_compose_file_names_files_and_services_that_exist() -> None:
    folder = DEPLOY / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text())
    services = compose["services"]
    assert len([name for name in services if name.startswith("node")]) == 3
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert set(service.get("secrets", ())) <= set(compose["secrets"])
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            assert source in compose["volumes"] or (folder / source).exists(), mount
        if "build" in service:
            assert (folder / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all((folder / secret["file"]).is_file() for secret in compose["secrets"].values())


def test_the_pipeline_of_the_compose_file_is_valid(tmp_path: Path) -> None:
    text = (DEPLOY / "compose" / "pipeline.yaml").read_text()
    for secret in (DEPLOY / "compose" / "secrets").iterdir():
        text = text.replace(f"/run/secrets/{secret.name}", str(secret))
    assert "/run/secrets" not in text
    (tmp_path / "pipeline.yaml").write_text(text)
    settings = load(tmp_path / "pipeline.yaml", Registry.installed())
    assert [named.use.name for named in settings.pipelines["events"].sinks] == ["files", "opensearch"]
    assert settings.node.metrics_port == 9464


# --- Helm ------------------------------------------------------------------------------------------------------------

VALUES = """
files:
  archive:
    replicas: 3
    secrets: [database]
    config:
      source_coordination: {store: {sqlite: {path: /var/lib/holdfast/leases.db}}}
      node: {session_timeout: 20s}
      pipelines: {}
  search:
    config: |
      pipelines: {}
    resources: {limits: {memory: 8Gi}}
    maxUnavailable: 50%
podMonitor: {enabled: true}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::123456789012:role/holdfast"}}
"""


def template(folder: Path, values: str, *options: str) -> subprocess.CompletedProcess[str]:
    helm = cache_folder() / "bin" / HELM
    if not helm.is_file():
        pytest.fail(f"there is no {helm}; {HOW_TO_INSTALL}")
    (folder / "values.yaml").write_text(values)
    values_file = str(folder / "values.yaml")
    command = [str(helm), "template", "live", str(CHART), "-f", values_file, "--kube-version", KUBERNETES, *options]
    return subprocess.run(command, check=False, capture_output=True, text=True)


def rendered(folder: Path, values: str, *options: str) -> list[dict[str, Any]]:
    done = template(folder, values, *options)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture
def objects(tmp_path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in rendered(tmp_path, VALUES)}


def test_every_object_is_one_that_kubernetes_takes(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert sorted(kind for kind, _ in objects) == [
        "ConfigMap", "ConfigMap", "Deployment", "Deployment", "PodDisruptionBudget", "PodDisruptionBudget",
        "PodMonitor", "ServiceAccount",
    ]  # fmt: skip
    for (kind, _), one in objects.items():
        if kind != "PodMonitor":  # it is not one of Kubernetes itself
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
    wrong = objects["Deployment", "live-archive"]
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_a_deployment_per_file_with_probes_and_secrets_as_files(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    archive = objects["Deployment", "live-archive"]["spec"]
    pod = archive["template"]["spec"]
    (node,) = pod["containers"]
    assert archive["replicas"] == 3
    assert [node[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")] == [
        "/readyz", "/readyz", "/healthz",
    ]  # fmt: skip
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"] == 10001
    (mounted,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert mounted == {"secretName": "database", "defaultMode": 0o440}
    assert {"name": "secret-database", "mountPath": "/run/secrets/database", "readOnly": True} in node["volumeMounts"]
    search = objects["Deployment", "live-search"]["spec"]["template"]["spec"]
    assert search["containers"][0]["resources"] == {"limits": {"memory": "8Gi"}}
    assert objects["PodDisruptionBudget", "live-archive"]["spec"]["maxUnavailable"] == 1
    assert objects["PodDisruptionBudget", "live-search"]["spec"]["maxUnavailable"] == "50%"
    account = objects["ServiceAccount", "live"]
    assert account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"].startswith("arn:")


@pytest.mark.parametrize("file", ["archive", "search"])
def test_the_mounted_file_is_valid_and_serves_the_probes(
    objects: dict[tuple[str, str], dict[str, Any]], tmp_path: Path, file: str
) -> None:
    (tmp_path / "pipeline.yaml").write_text(objects["ConfigMap", f"live-{file}"]["data"]["pipeline.yaml"])
    node = load(tmp_path / "pipeline.yaml", Registry.installed()).node
    assert (node.metrics_port, node.metrics_address, node.log) == (9464, "0.0.0.0", "json")  # noqa: S104 - that of a pod
    assert node.session_timeout == (20.0 if file == "archive" else 30.0)


@pytest.mark.parametrize(
    "values",
    [
        "files: {archive: {replicas: 0, maxUnavailable: 0, config: {pipelines: {}}}}",
        "files: {archive: {replicas: 0, config: {pipelines: {}}}}\npodDisruptionBudget: {maxUnavailable: 0}",
    ],
)
def test_zero_is_zero(tmp_path: Path, values: str) -> None:
    specs = {one["kind"]: one.get("spec", {}) for one in rendered(tmp_path, values)}
    assert (specs["Deployment"]["replicas"], specs["PodDisruptionBudget"]["maxUnavailable"]) == (0, 0)


def test_a_number_that_is_left_empty_is_the_default(tmp_path: Path) -> None:
    values = "files: {archive: {replicas: null, maxUnavailable: null, config: {pipelines: {}}}}"
    specs = {one["kind"]: one.get("spec", {}) for one in rendered(tmp_path, values)}
    assert (specs["Deployment"]["replicas"], specs["PodDisruptionBudget"]["maxUnavailable"]) == (1, 1)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('"pipelines: {a: [1, 2}"', "files.archive.config is not valid YAML: .*did not find expected"),
        ('"- pipelines"', "files.archive.config is not valid YAML"),
        ('""', "files.archive.config must be"),
        ("null", "files.archive.config must be"),
        ("[pipelines]", "files.archive.config must be"),
    ],
)
def test_a_file_that_is_not_one_is_not_installed(tmp_path: Path, config: str, reason: str) -> None:
    done = template(tmp_path, f"files: {{archive: {{config: {config}}}}}")
    assert done.returncode != 0, done.stdout
    assert re.search(reason, done.stderr), done.stderr


def test_another_file_makes_other_pods(tmp_path: Path) -> None:
    def checksum(values: str) -> str:
        one, *_ = rendered(tmp_path, values, "-s", "templates/deployment.yaml")
        return str(one["spec"]["template"]["metadata"]["annotations"]["checksum/config"])

    assert checksum(VALUES) == checksum(VALUES)
    assert checksum(VALUES) != checksum(VALUES.replace("20s", "25s"))


def test_the_chart_has_the_version_of_holdfast() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == __version__


# --- systemd ---------------------------------------------------------------------------------------------------------


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.fail(f"systemd-analyze is missing; {HOW_TO_INSTALL}")
    unit = (DEPLOY / "systemd" / "holdfast@.service").read_text()
    program = tmp_path / "holdfast"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    here = tmp_path / "holdfast@archive.service"
    here.write_text(unit.replace("/opt/holdfast/bin/holdfast", str(program)))
    done = subprocess.run([analyze, "verify", "--man=no", here], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
