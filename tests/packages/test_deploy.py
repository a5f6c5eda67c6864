# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, the Kubernetes manifest and the CI's workflow say nothing that is not there."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdmatensor import config

# Variables of the build, and of rdmatensor's tests.
BUILD = {"RDMATENSOR_TENSORFLOW", "RDMATENSOR_BUILD_TENSORFLOW"}
FILES = ["docker/Dockerfile", "deploy/kubernetes.yaml", ".github/workflows/ci.yml"]
PAGES = ["docs/containers.md", "docs/packages.md"]


def text_of(root: Path, name: str) -> str:
    path = root / name
    if not path.exists():
        pytest.skip(f"no {name}: this is no clone")
    return path.read_text()


@pytest.mark.parametrize("name", FILES + PAGES)
def test_variables_are_settings(root: Path, name: str) -> None:
    settings = {f"RDMATENSOR_{row.name}" for row in config.table()}
    assert set(re.findall(r"RDMATENSOR_[A-Z_]+", text_of(root, name))) <= settings | BUILD


@pytest.fixture(scope="module")
def manifest(root: Path) -> dict[str, Any]:
    """The objects of the manifest, by kind."""
    objects = yaml.safe_load_all((root / "deploy/kubernetes.yaml").read_text())
    return {each["kind"]: each for each in objects}


def test_pods_get_what_they_need(manifest: dict[str, Any]) -> None:
    pod = manifest["Job"]["spec"]["template"]["spec"]
    (task,) = pod["containers"]
    assert task["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert any(name.startswith("rdma/") for name in task["resources"]["limits"])
    (volume,) = pod["volumes"]
    (mount,) = task["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert volume["secret"]["defaultMode"] == 0o400
    variables = {each["name"]: each["value"] for each in task["env"]}
    assert Path(variables["RDMATENSOR_SECRET_FILE"]).parent == Path(mount["mountPath"])
    for name, value in variables.items():
        before = config.get(name.removeprefix("RDMATENSOR_"))
        config.set(name.removeprefix("RDMATENSOR_"), value)  # refused if it makes no sense
        config.set(name.removeprefix("RDMATENSOR_"), before)


def test_pods_find_each_other(manifest: dict[str, Any]) -> None:
    service, job = manifest["Service"], manifest["Job"]
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    hosts = next(text for text in pod["containers"][0]["command"] if "," in text).split(",")
    assert hosts == [f"{name}-{i}.{name}" for i in range(job["spec"]["completions"])]
    assert job["spec"]["parallelism"] == job["spec"]["completions"]


def test_programs_are_in_the_image(root: Path, manifest: dict[str, Any]) -> None:
    dockerfile = text_of(root, "docker/Dockerfile")
    copied = dict(re.findall(r"^COPY (\S+) (\S+)$", dockerfile, re.MULTILINE))
    command = manifest["Job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    programs = [text for text in command if text.endswith(".py")]
    assert programs
    for program in programs:
        source = program.replace(copied["examples"], "examples")
        assert (root / source).is_file(), program
    # What it copies is not kept from Docker.
    kept = re.findall(r"^!(\S+)$", text_of(root, ".dockerignore"), re.MULTILINE)
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in kept) for name in copied)


def test_workflow_runs_targets_that_exist(root: Path) -> None:
    workflow = yaml.safe_load(text_of(root, ".github/workflows/ci.yml"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    asked = re.findall(r"\bmake ([a-z-]+)", commands)
    assert {"lint", "test", "dist"} <= set(asked) <= targets
    # Each result that is fetched was left by another job.
    uses = [(step.get("uses", "").split("@")[0], step.get("with", {})) for step in steps]
    left = {given["name"] for action, given in uses if action == "actions/upload-artifact"}
    fetched = {given["name"] for action, given in uses if action == "actions/download-artifact"}
    assert fetched and fetched <= left
