# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile, the manifests and the CI's workflow say nothing that is not there."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from rdmatensor import config
from rdmatensor._tools.place import config_of

# Variables of the build, and of rdmatensor's tests.
BUILD = {"RDMATENSOR_TENSORFLOW", "RDMATENSOR_BUILD_TENSORFLOW", "RDMATENSOR_REPOSITORY"}
MANIFESTS = ["kubernetes", "kubeflow-tfjob", "kubeflow-trainjob"]
FILES = [
    "docker/Dockerfile",
    ".github/workflows/ci.yml",
    *(f"deploy/{name}.yaml" for name in MANIFESTS),
]
NIGHTLY = ".github/workflows/conformance.yml"
# Files and folders of the repository, and modules below tests/, in a text such as the Makefile.
NAMED = re.compile(
    r"(?<![\w/.}$)-])(?:\.ci|bench|csrc|deploy|docker|docs|examples|graph_analyzer|rdmatensor|tests)"
    r"/[\w./-]*[\w-](?![*\w])|(?<![\w/.*}-])[\w-]+(?:/[\w-]+)*\.(?:c|cmake|json|md|py|toml)\b"
)
MODULE = re.compile(r"\$\(TESTS_PYTHON\) -m ([\w.]+)")
# What a run writes, and a placeholder.
NOT_IN_THE_SOURCES = re.compile(r"build/|rdmatensor/_build_info\.json|path\.py")
PAGES = ["docs/containers.md", "docs/packages.md", "docs/launch.md"]


def text_of(root: Path, name: str) -> str:
    path = root / name
    if not path.exists():
        pytest.skip(f"no {name}: this is no clone")
    return path.read_text()


@pytest.mark.parametrize("name", FILES + PAGES)
def test_variables_are_settings(root: Path, name: str) -> None:
    settings = {f"RDMATENSOR_{row.name}" for row in config.table()}
    assert set(re.findall(r"RDMATENSOR_[A-Z_]+", text_of(root, name))) <= settings | BUILD


def objects(root: Path, name: str) -> dict[str, Any]:
    """The objects of a manifest, by kind."""
    found = yaml.safe_load_all((root / f"deploy/{name}.yaml").read_text())
    return {each["kind"]: each for each in found}


def pod(root: Path, name: str) -> dict[str, Any]:
    """The pods that a manifest makes."""
    found = objects(root, name)
    spec: dict[str, Any]
    if name == "kubernetes":
        spec = found["Job"]["spec"]["template"]["spec"]
    elif name == "kubeflow-tfjob":
        spec = found["TFJob"]["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    else:
        (job,) = found["TrainingRuntime"]["spec"]["template"]["spec"]["replicatedJobs"]
        assert job["name"] == "node"
        spec = job["template"]["spec"]["template"]["spec"]
    return spec


def command(root: Path, name: str) -> list[str]:
    """The command of a manifest's pods."""
    if name == "kubeflow-trainjob":
        found = objects(root, name)["TrainJob"]["spec"]["trainer"]["command"]
    else:
        found = pod(root, name)["containers"][0]["command"]
    return [str(word) for word in found]


@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_get_what_they_need(root: Path, name: str) -> None:
    spec = pod(root, name)
    (task,) = spec["containers"]
    assert task["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert any(limit.startswith("rdma/") for limit in task["resources"]["limits"])
    # Without a request the scheduler puts all tasks on one processor.
    assert int(task["resources"]["requests"]["cpu"]) >= 1
    assert task["resources"]["requests"]["memory"] == task["resources"]["limits"]["memory"]
    (volume,) = spec["volumes"]
    (mount,) = task["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert volume["secret"]["defaultMode"] == 0o400
    variables = {each["name"]: each["value"] for each in task["env"]}
    assert Path(variables["RDMATENSOR_SECRET_FILE"]).parent == Path(mount["mountPath"])
    # What a NetworkPolicy must open is fixed, and told.
    told = [each["containerPort"] for each in task["ports"]]
    assert int(variables["RDMATENSOR_BIND_PORT"]) in told
    for variable, value in variables.items():
        before = config.get(variable.removeprefix("RDMATENSOR_"))
        config.set(variable.removeprefix("RDMATENSOR_"), value)  # refused if it makes no sense
        config.set(variable.removeprefix("RDMATENSOR_"), before)


def test_a_task_that_fails_is_started_again(root: Path) -> None:
    job = objects(root, "kubernetes")["Job"]["spec"]
    assert job["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert job["backoffLimit"] > 0
    worker = objects(root, "kubeflow-tfjob")["TFJob"]["spec"]["tfReplicaSpecs"]["Worker"]
    assert worker["restartPolicy"] == "OnFailure"
    assert pod(root, "kubeflow-trainjob")["restartPolicy"] == "OnFailure"


def test_pods_of_a_job_find_each_other(root: Path) -> None:
    found = objects(root, "kubernetes")
    service, job = found["Service"], found["Job"]
    name = job["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod(root, "kubernetes")["subdomain"] == service["metadata"]["name"]
    hosts = [f"{name}-{i}.{name}" for i in range(job["spec"]["completions"])]
    assert command(root, "kubernetes")[:6] == [
        "rdmatensor",
        "launch",
        "--place",
        ",".join(hosts),
        "--ps",
        "1",
    ]
    assert config_of(hosts, rank=0, ps=1, port=2222, protocol="grpc+rdma")
    assert job["spec"]["parallelism"] == job["spec"]["completions"]


def test_pods_of_a_train_job_find_each_other(root: Path) -> None:
    """A JobSet names them after itself, which is named after the TrainJob, and its one replicated job."""
    found = objects(root, "kubeflow-trainjob")
    job, runtime = found["TrainJob"], found["TrainingRuntime"]
    name, count = job["metadata"]["name"], job["spec"]["trainer"]["numNodes"]
    hosts = [f"{name}-node-0-{i}.{name}" for i in range(count)]
    assert command(root, "kubeflow-trainjob")[:4] == [
        "rdmatensor",
        "launch",
        "--place",
        ",".join(hosts),
    ]
    assert job["spec"]["runtimeRef"]["kind"] == runtime["kind"]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert runtime["spec"]["mlPolicy"] == {"numNodes": count}


def test_a_tf_job_keeps_the_operators_cluster(root: Path) -> None:
    assert command(root, "kubeflow-tfjob")[:4] == ["rdmatensor", "launch", "--place", "TF_CONFIG"]
    (task,) = pod(root, "kubeflow-tfjob")["containers"]
    assert (task["name"], task["ports"][0]["name"]) == ("tensorflow", "tfjob-port")


@pytest.mark.parametrize("name", MANIFESTS)
def test_programs_are_in_the_image(root: Path, name: str) -> None:
    dockerfile = text_of(root, "docker/Dockerfile")
    copied = dict(re.findall(r"^COPY (\S+) (\S+)$", dockerfile, re.MULTILINE))
    programs = [word for word in command(root, name) if word.endswith(".py")]
    assert programs
    for program in programs:
        source = program.replace(copied["examples"], "examples")
        assert (root / source).is_file(), program
    # What it copies is not kept from Docker.
    kept = re.findall(r"^!(\S+)$", text_of(root, ".dockerignore"), re.MULTILINE)
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in kept) for name in copied)


def test_examples_compile(root: Path) -> None:
    """Also those that need packages which the tests do not install."""
    programs = sorted((root / "examples").glob("*.py"))
    assert {"ray_train.py", "multi_worker_custom_loop.py"} <= {each.name for each in programs}
    for program in programs:
        compile(program.read_text(), program.name, "exec")


def steps(root: Path) -> list[str]:
    """The commands of the Dockerfile."""
    text = text_of(root, "docker/Dockerfile").replace("\\\n", "")
    return re.findall(r"^RUN (.*)$", text, re.MULTILINE)


def test_image_has_keras_2_for_its_tensorflow(root: Path) -> None:
    (step,) = (text for text in steps(root) if "tf_keras" in text)
    pip = 'pip() { echo "$@"; }; '
    for wanted in ("tensorflow-cpu==2.21.*", "tensorflow[and-cuda]==2.20.*"):
        done = subprocess.run(
            ["sh", "-c", pip + step],
            env=os.environ | {"TENSORFLOW": wanted},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        first, second = done.stdout.splitlines()
        assert first.endswith(f" {wanted}")
        assert second.endswith(f" tf_keras<={wanted[-6:-1]}99")


def wheel(folder: Path, version: str, tag: str) -> None:
    """An installable package without anything in it."""
    folder.mkdir(exist_ok=True)
    info = f"rdmatensor-{version}.dist-info"
    with zipfile.ZipFile(folder / f"rdmatensor-{version}-{tag}.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: rdmatensor\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        )
        archive.writestr(f"{info}/RECORD", "")


def test_image_takes_the_newest_wheel_that_fits(root: Path, tmp_path: Path) -> None:
    """The Dockerfile's own commands, with several wheels in dist/."""
    (step,) = (text for text in steps(root) if "pip download" in text)
    wheel(tmp_path / "dist", "0.1.0", "py3-none-any")
    wheel(tmp_path / "dist", "0.2.0", "py3-none-any")
    wheel(tmp_path / "dist", "0.3.0", "cp310-abi3-manylinux_2_34_s390x")
    chosen = step.replace("/tmp/", f"{tmp_path}/").replace("pip install", "echo install")
    done = subprocess.run(
        ["sh", "-c", f'pip() {{ "{sys.executable}" -m pip -q "$@"; }}; {chosen}'],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == f"{tmp_path}/wheel/rdmatensor-0.2.0-py3-none-any.whl[metrics]"
    assert not (tmp_path / "dist").exists() and not (tmp_path / "wheel").exists()


def workflow(root: Path) -> dict[str, Any]:
    """The jobs of the CI."""
    jobs: dict[str, Any] = yaml.safe_load(text_of(root, ".github/workflows/ci.yml"))["jobs"]
    return jobs


def test_workflow_runs_targets_that_exist(root: Path) -> None:
    steps = [step for job in workflow(root).values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    asked = re.findall(r"\bmake ([a-z-]+)", commands)
    assert {"lint", "test", "dist"} <= set(asked) <= targets
    # Each result that is fetched was left by another job.
    uses = [(step.get("uses", "").split("@")[0], step.get("with", {})) for step in steps]
    left = {given["name"] for action, given in uses if action == "actions/upload-artifact"}
    fetched = {given["name"] for action, given in uses if action == "actions/download-artifact"}
    assert fetched and fetched <= left


@pytest.mark.parametrize("name", ["Makefile", ".github/workflows/ci.yml", NIGHTLY])
def test_files_that_are_named_exist(root: Path, name: str) -> None:
    text = text_of(root, name)
    named = {each for each in NAMED.findall(text) if not NOT_IN_THE_SOURCES.match(each)}
    assert named
    assert not [each for each in named if not (root / each).exists()]
    for module in MODULE.findall(text):
        assert (root / "tests" / f"{module.replace('.', '/')}.py").is_file(), module


def test_workflows_use_one_version_of_an_action(root: Path) -> None:
    text = "".join(text_of(root, name) for name in (".github/workflows/ci.yml", NIGHTLY))
    used: dict[str, set[str]] = {}
    for action, version in re.findall(r"uses: (\S+)@(\S+)", text):
        used.setdefault(action, set()).add(version)
    assert "actions/checkout" in used
    assert not {action: versions for action, versions in used.items() if len(versions) > 1}


def test_only_tested_tags_are_published(root: Path) -> None:
    """All jobs come first; and PyPI's trust needs an identity, which no other job may have."""
    jobs = workflow(root)
    publish = jobs["publish"]
    assert publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    before: set[str] = set()
    waiting = set(publish["needs"])
    while waiting:
        before |= waiting
        needs = [jobs[name].get("needs", []) for name in waiting]
        waiting = {
            each for one in needs for each in ([one] if isinstance(one, str) else one)
        } - before
    # The newest TensorFlow may be one that this release does not support.
    assert before == set(jobs) - {"publish", "next-tensorflow"}
    assert publish["permissions"]["id-token"] == "write"
    assert not any("permissions" in job for name, job in jobs.items() if name != "publish")
    (built,) = (step["env"] for step in jobs["wheels"]["steps"] if step.get("run") == "make dist")
    assert "github.repository" in built["RDMATENSOR_REPOSITORY"]


def test_nightly_workflow_names_variants_that_exist(root: Path) -> None:
    (job,) = yaml.safe_load(text_of(root, NIGHTLY))["jobs"].values()
    assert any(
        step.get("run", "").startswith("make test SUITE=conformance SOURCE=")
        for step in job["steps"]
    )
    named = {
        name for row in job["strategy"]["matrix"]["include"] for name in row["variants"].split()
    }
    program = text_of(root, "tests/conformance/run.py")
    (table,) = re.findall(r"^VARIANTS = \{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL)
    assert named <= set(re.findall(r'^    "(\w+)": ', table, re.MULTILINE))
