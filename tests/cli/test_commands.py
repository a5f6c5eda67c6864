# SPDX-License-Identifier: Apache-2.0
"""The command `rdmatensor`, run as users run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rdmatensor
from rdmatensor.cli import COMMANDS
from support.ports import free_ports

SECONDS = 100
Run = subprocess.CompletedProcess[str]


def environment(**variables: str) -> dict[str, str]:
    """Of this process, with no settings but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RDMATENSOR_")}
    return kept | variables


def run(*arguments: str, **variables: str) -> Run:
    return subprocess.run(
        [sys.executable, "-m", "rdmatensor", *arguments],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def without_modules(code: str, *modules: str) -> Run:
    """The command line with these arguments in a Python that does not have some modules."""
    hidden = "".join(f"sys.modules[{module!r}] = None;" for module in modules)
    start = f"import sys; {hidden} from rdmatensor.cli import main; main({code}, prog_name='rdmatensor')"
    return subprocess.run(
        [sys.executable, "-c", start], capture_output=True, text=True, timeout=SECONDS, check=False
    )


# ---- The list of commands ----------------------------------------------------------------------------


def test_the_list_needs_no_library_and_no_tensorflow() -> None:
    done = without_modules("['--help']", "rdmatensor._ffi", "numpy", "tensorflow", "rich")
    assert done.returncode == 0, done.stderr
    listed = {
        line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line
    }
    assert listed == {*COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_examples(name: str) -> None:
    done = without_modules(f"[{name!r}, '--help']")
    assert done.returncode == 0, done.stderr
    assert f"\n  rdmatensor {name} " in done.stdout or f"\n    rdmatensor {name}" in done.stdout


@pytest.mark.parametrize(
    ("module", "arguments", "remedy"),
    [
        ("scipy", ["topology", "dgx2", "--plan", "broadcast"], "'rdmatensor[topology]'"),
        ("sklearn", ["simulate"], "'rdmatensor[simulate]'"),
        ("click", [], "pip install 'click>=8' 'rich>=13'"),
        ("rich", ["doctor"], "pip install rich"),
        ("numpy", ["ping", "localhost:1"], "pip install numpy"),
        ("prometheus_client", ["top", "9100"], "pip install 'rdmatensor[metrics]'"),
    ],
)
def test_a_missing_package_is_one_line(module: str, arguments: list[str], remedy: str) -> None:
    done = without_modules(repr(arguments), module)
    assert done.returncode == 1
    assert remedy in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_plan_without_tensorflow_is_one_line(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.json"
    cluster.write_text('{"worker": ["a:1", "b:1"]}')
    done = without_modules(f"['plan', 'os:getcwd', '--cluster', {str(cluster)!r}]", "tensorflow")
    assert done.returncode == 1
    assert "pip install 'tensorflow-cpu" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("module", "use", "text"),
    [
        ("tensorflow", "train.init()", "rdmatensor.train needs tensorflow: pip install"),
        ("keras", "train.callbacks()", "rdmatensor.train.callbacks needs keras: pip install"),
        ("scipy", "topology.plan", "rdmatensor.topology.plan needs scipy: pip install"),
    ],
)
def test_a_missing_package_is_told_in_python(module: str, use: str, text: str) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None; from rdmatensor import topology, train; {use}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stderr.splitlines()[-1].startswith(f"ModuleNotFoundError: {text}"), done.stderr


def test_an_unknown_command_is_an_error() -> None:
    done = run("doktor")
    assert done.returncode == 2 and "No such command" in done.stderr


def test_shells_complete_commands() -> None:
    done = run(_RDMATENSOR_COMPLETE="bash_complete", COMP_WORDS="rdmatensor do", COMP_CWORD="1")
    assert done.stdout.split() == ["plain,doctor"], done.stderr


# ---- doctor ------------------------------------------------------------------------------------------


class Report:
    """What `doctor --json --quick` printed."""

    def __init__(self, **variables: str) -> None:
        done = run("doctor", "--quick", "--json", **variables)
        assert done.stdout, done.stderr
        self.status = done.returncode
        self.findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]

    def about(self, area: str) -> dict[str, Any]:
        found = [finding for finding in self.findings if finding["area"] == area]
        assert len(found) == 1, self.findings
        return found[0]

    def of_state(self, state: str) -> list[dict[str, Any]]:
        return [finding for finding in self.findings if finding["state"] == state]


def test_doctor_tries_shared_memory() -> None:
    report = Report(RDMATENSOR_TRANSPORTS="shm")
    assert report.status == 0 and not report.of_state("fail")
    assert rdmatensor.__version__ in report.about("library")["text"]
    assert report.about("self-test shm")["state"] == "ok"
    assert "compared" in report.about("self-test shm")["text"]
    assert "RDMATENSOR_TRANSPORTS=shm" in report.about("settings")["text"]
    assert report.about("memlock")["state"] == report.about("memory")["state"] == "ok"


def test_doctor_tells_every_fault_at_once(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o644)
    report = Report(
        RDMATENSOR_SPINUS="1",
        RDMATENSOR_QUEUE_PAIRS="99",
        RDMATENSOR_PLAN="perhaps",
        RDMATENSOR_SECRET_FILE=str(secret),
        RDMATENSOR_BIND_ADDRESS="192.0.2.1",  # of documentation: no machine has it
    )
    assert report.status == 1
    texts = {finding["text"]: finding for finding in report.findings}
    unknown = texts["RDMATENSOR_SPINUS is not a setting; the nearest is RDMATENSOR_SPIN_US"]
    assert unknown["state"] == "warn" and "unset RDMATENSOR_SPINUS" in unknown["remedy"]
    refused = [finding["text"] for finding in report.of_state("fail")]
    assert any("RDMATENSOR_QUEUE_PAIRS" in text and "1..8" in text for text in refused)
    assert any("RDMATENSOR_PLAN" in text and "on|off" in text for text in refused)
    assert any("192.0.2.1" in text for text in refused)
    assert report.about("secret")["remedy"] == f"chmod 600 {secret}"
    # Faults of settings do not hide what the machine has.
    assert report.about("transport shm")["state"] == "ok"


def test_doctor_reads_a_good_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    report = Report(RDMATENSOR_SECRET_FILE=str(secret), RDMATENSOR_TRANSPORTS="shm")
    assert report.status == 0
    assert report.about("secret") | {"text": ""} == report.about("device") | {
        "text": "",
        "area": "secret",
    }
    assert "mode 0600, 32 bytes" in report.about("secret")["text"]


def test_doctor_tells_which_ports_to_open() -> None:
    (port,) = free_ports(1)
    report = Report(RDMATENSOR_TRANSPORTS="shm", RDMATENSOR_METRICS="9100")
    text = report.about("ports")["text"]
    assert re.search(r"TCP \d+-\d+ between the hosts, or set RDMATENSOR_BIND_PORT", text), text
    assert "TCP 9100 for metrics" in text and "UDP" not in text
    report = Report(RDMATENSOR_TRANSPORTS="shm", RDMATENSOR_BIND_PORT=str(port))
    assert f"open TCP {port} between the hosts" in report.about("ports")["text"]
    assert report.about("self-test shm")["state"] == "ok"
    with socket.create_server(("127.0.0.1", port)):
        report = Report(RDMATENSOR_TRANSPORTS="shm", RDMATENSOR_BIND_PORT=str(port))
    assert report.status == 0 and report.about("device")["state"] == "warn"
    assert (
        f"RDMATENSOR_BIND_PORT is {port}, and that port is in use" in report.about("device")["text"]
    )
    assert "ss -ltnp" in report.about("device")["remedy"]


def test_doctor_says_that_everybody_is_let_in() -> None:
    report = Report(RDMATENSOR_INSECURE="1", RDMATENSOR_TRANSPORTS="shm")
    assert report.status == 0
    assert report.about("secret")["state"] == "warn"


def test_doctor_sees_few_open_files() -> None:
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120)); "
    limited += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = subprocess.run(
        [sys.executable, "-c", limited, "-m", "rdmatensor", "doctor", "--quick", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    findings = {finding["area"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["open files"]["state"] == "warn"
    assert findings["open files"]["remedy"] == "ulimit -n 120"


def test_doctor_writes_what_the_terminal_can_show() -> None:
    done = run("doctor", "--quick", RDMATENSOR_SPINUS="1", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "-> unset RDMATENSOR_SPINUS" in done.stdout


def test_doctor_works_without_the_library(tmp_path: Path) -> None:
    installed = Path(rdmatensor.__file__).parent
    shutil.copytree(
        installed, tmp_path / "rdmatensor", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    (tmp_path / "rdmatensor" / "_ffi.abi3.so").touch()  # as a full disk leaves it
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "doctor", "--quick"],
        env=environment(PYTHONPATH=str(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    first, remedy = done.stdout.splitlines()[:2]
    assert first.startswith("fail  library") and "_ffi" in first
    assert "pip install" in remedy and "open files" in done.stdout


# ---- doctor --info --------------------------------------------------------------------------------


def test_info_tells_where_values_come_from() -> None:
    variables = {"RDMATENSOR_SPIN_US": "7", "RDMATENSOR_PLAN": "perhaps", "RDMATENSOR_POLICY": ""}
    done = run("doctor", "--info", "--json", **variables)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    settings = {setting["name"]: setting for setting in facts["settings"]}
    assert (settings["SPIN_US"]["value"], settings["SPIN_US"]["source"]) == ("7", "environment")
    assert (settings["PLAN"]["value"], settings["PLAN"]["source"]) == ("on", "default")
    assert settings["POLICY"]["source"] == "default"
    assert "perhaps" in facts["refused"]["PLAN"]
    assert facts["transports"]["shm"]["usable"] and facts["version"] == rdmatensor.__version__


def test_without_a_command_the_facts_are_shown() -> None:
    done = run(RDMATENSOR_SPIN_US="7")
    assert (
        done.returncode == 0
        and done.stdout == run("doctor", "--info", RDMATENSOR_SPIN_US="7").stdout
    )
    assert done.stdout.startswith(f"rdmatensor {rdmatensor.__version__}")
    assert re.search(r"^  SPIN_US +7 +environment", done.stdout, re.MULTILINE)


# ---- ping --------------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[Callable[..., str]]:
    """Starts `ping --listen --once` with these settings; its address. It must end by itself."""
    started: list[subprocess.Popen[str]] = []

    def start(**variables: str) -> str:
        command = [sys.executable, "-m", "rdmatensor", "ping", "--listen", "--once", "--port", "0"]
        process = subprocess.Popen(
            [*command, "--bind", "127.0.0.1"],
            env=environment(**variables),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout
        return process.stdout.readline().split()[2].rstrip(";")

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_ping_measures_shared_memory(listener: Callable[..., str]) -> None:
    done = run("ping", listener(), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["transport"] == "shm" and result["passed_over"] == {}
    assert 0 < result["write"]["p50"] <= result["write"]["p99"]
    assert 0 < result["round_trip"]["p50"] <= result["round_trip"]["p99"]
    assert [speed["size"] for speed in result["speeds"]] == [4 << 10, 64 << 10, 1 << 20, 16 << 20]
    assert all(speed["write"] > 0 and speed["read"] > 0 for speed in result["speeds"])


def test_ping_of_nobody_says_what_to_start() -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        done = run("ping", f"127.0.0.1:{bound.getsockname()[1]}")
    assert done.returncode == 1
    assert "Connection refused; start `rdmatensor ping --listen` there" in done.stderr
    assert "Traceback" not in done.stderr


def test_ping_of_something_else_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            other, _ = server.accept()
            with other:
                other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 20)

        thread = threading.Thread(target=answer)
        thread.start()
        done = run("ping", f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert done.returncode == 1
    assert "install the same rdmatensor on both" in done.stderr, done.stderr


def test_ping_without_the_secret_says_so(listener: Callable[..., str], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 2)
    secret.chmod(0o600)
    done = run("ping", listener(RDMATENSOR_SECRET_FILE=str(secret)))
    assert done.returncode == 1
    assert "has a secret, and" in done.stderr and "RDMATENSOR_SECRET_FILE" in done.stderr


def test_ping_over_a_transport_that_is_not_there() -> None:
    done = run("ping", "localhost", "--transport", "carrier-pigeon")
    assert done.returncode == 1
    assert "there is no transport" in done.stderr and "Traceback" not in done.stderr


def test_ping_wants_one_of_the_two() -> None:
    assert run("ping").returncode == run("ping", "localhost", "--listen").returncode == 2


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("node7", "node7:7479"),
        ("node7:1", "node7:1"),
        ("10.0.0.7", "10.0.0.7:7479"),
        ("fe80::1", "[fe80::1]:7479"),
        ("[fe80::1]", "[fe80::1]:7479"),
        ("[fe80::1]:1", "[fe80::1]:1"),
    ],
)
def test_addresses(host: str, address: str) -> None:
    from rdmatensor._tools.commands.ping import address_of

    assert address_of(host) == address
