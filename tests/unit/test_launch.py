# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor launch` as users call it. No TensorFlow: tests/plugin/test_examples.py has that."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from rdmatensor._tools import remote
from rdmatensor._tools.processes import reserved_addresses
from support import sshd
from support.network import two_hosts
from support.ports import free_ports

SECONDS = 60.0
# Each task does what the argument says for it, for example "worker 1=fail", and leaves otherwise.
SCRIPT = """
import json, os, signal, subprocess, sys, time
place = json.loads(os.environ["TF_CONFIG"])["task"]
deeds = dict(word.split("=") for word in sys.argv[1:] if "=" in word)
deed = deeds.get(f"{place['type']} {place['index']}", "")
print("begins", flush=True)
if deed == "config":
    print(os.environ["TF_CONFIG"])
    print(sys.argv, file=sys.stderr)
elif deed == "rank":
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    print(json.dumps([os.environ.get(name) for name in names]))
elif deed == "threads":
    print("threads:", os.environ.get("OMP_NUM_THREADS"))
elif deed == "fail":
    sys.exit(3)
elif deed == "die":
    os.kill(os.getpid(), signal.SIGKILL)
elif deed.startswith("once "):
    with open(deed.removeprefix("once "), "a+") as file:
        first = file.tell() == 0
        file.write("x")
    sys.exit(5 if first else 0)
elif deed == "parent":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", *sys.argv])
elif deed == "tell":
    secret = os.environ.get("RDMATENSOR_SECRET_FILE")
    secret = secret and open(secret).read()
    import rdmatensor
    rdmatensor.Device().close()  # a device takes such a file
    print(json.dumps({"folder": os.getcwd(), "word": os.environ["SAID_HERE"], "secret": secret}))
elif deed == "bytes":
    os.write(1, b"\\xff" * 70000 + b"\\nrest")
elif deed in ("serve", "stubborn"):
    if deed == "stubborn":
        signal.signal(signal.SIGTERM, lambda number, _: print("saves", flush=True))
    print("serves", flush=True)
    time.sleep(1000)
"""
# What none of them may be left of.
Mark = str
Place = list[str]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def processes(mark: Mark) -> list[str]:
    """The command lines that name a file."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_text()
            except OSError:
                continue
            found += [words] if mark in words else []
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(script: Path) -> Iterator[None]:
    """No process, and no file with a secret, however the processes ended."""
    before = secret_files()
    yield
    end = time.monotonic() + SECONDS
    while left := processes(str(script)):
        assert time.monotonic() < end, left
        time.sleep(0.02)
    assert secret_files() <= before


def secret_files() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("rdmatensor-secret-*"))


def command(*arguments: str | Path) -> list[str | Path]:
    return [sys.executable, "-m", "rdmatensor", "launch", *arguments]


@pytest.fixture(scope="module", params=["here", "ssh", "namespaces"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Options that have the tasks run here, on a host behind a real sshd, or on two hosts."""
    several = ["--tasks-per-host", "3", "--hosts"]
    with ExitStack() as stack:
        if request.param == "here":
            yield []
        elif request.param == "ssh":
            options = stack.enter_context(sshd.server(tmp_path_factory.mktemp("sshd")))
            yield [
                *several,
                "localhost=127.0.0.1,127.0.0.1",
                "--ssh",
                shlex.join(["ssh", *options]),
            ]
        else:
            network = stack.enter_context(two_hosts())
            hosts = ",".join(f"{host.namespace}={host.address}" for host in network[:2])
            yield [*several, hosts, "--ssh", "ip netns exec"]


def launch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, errors="replace", timeout=SECONDS
    )


def test_options_of_horovodrun(script: Path, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# here\n127.0.0.1 slots=3  # three\n")
    for options, tasks in (
        (["-np", "2"], 2),
        (["-H", "localhost:2"], 2),
        (["-np", "2", "--hostfile", hosts], 2),
        (["--hostfile", hosts], 3),
    ):
        done = launch(*options, script)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("begins") == tasks


def test_hosts_have_their_slots_in_their_order() -> None:
    lines = "node1 slots=2 max_slots=4\n\nuser@node2  # one"
    found = [(each.name, each.address) for each in remote.parse_slots(remote.slots_in(lines))]
    assert found == [("node1", "node1"), ("node1", "node1"), ("user@node2", "node2")]


def test_tasks_know_their_places(script: Path) -> None:
    tasks = ["chief 0", "worker 0", "worker 1", "ps 0"]
    asked = [f"{task}=config" for task in tasks]
    done = launch("-n", "2", "--ps", "1", script, *asked, "--steps", "5")
    assert done.returncode == 0, done.stderr
    said = dict(line.split("] ", 1) for line in done.stdout.splitlines() if "{" in line)
    configs = {task.removeprefix("["): json.loads(text) for task, text in said.items()}
    assert set(configs) >= {"chief 0"}, "the others may be ended before they say anything"
    for task, config in configs.items():
        assert "{type} {index}".format(**config["task"]) == task
        assert config["rpc_layer"] == "grpc+rdma"
        cluster = config["cluster"]
        assert {job: len(addresses) for job, addresses in cluster.items()} == {
            "chief": 1, "worker": 2, "ps": 1,
        }  # fmt: skip
        assert len({address for addresses in cluster.values() for address in addresses}) == 4
    assert f"[chief 0] {[str(script), *asked, '--steps', '5']}" in done.stderr.splitlines()


def test_tasks_know_their_ranks(script: Path) -> None:
    """As torch.distributed reads them; with parameter servers there are none."""
    tasks = ["worker 0", "worker 1"]
    done = launch("-n", "2", script, *(f"{task}=rank" for task in tasks))
    assert done.returncode == 0, done.stderr
    ranks = sorted(
        json.loads(line.split("] ", 1)[1]) for line in done.stdout.splitlines() if '["' in line
    )
    (*first, port), (*second, other) = ranks
    assert first == ["0", "2", "0", "localhost"] and second == ["1", "2", "1", "localhost"]
    assert port == other and port.isdecimal()
    done = launch("-n", "2", "--ps", "1", script, "chief 0=rank")
    assert f"[chief 0] {[None] * 5}".replace("None", "null") in done.stdout.splitlines()


@pytest.mark.parametrize("given", [None, "5"])
def test_tasks_that_share_a_host_have_one_thread(
    script: Path, place: Place, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun does it. Of several hosts, the second has one task, which has all the cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    done = launch(*place, "-n", "3", script, *(f"worker {i}=threads" for i in range(3)))
    threads = re.findall(r"\[worker (\d)\] threads: (\w+)", done.stdout)
    alone = {"1": "None"} if given is None and "ip netns exec" in place else {}
    assert dict(threads) == dict.fromkeys("012", given or "1") | alone


def test_without_parameter_servers_all_are_waited_for(script: Path, place: Place) -> None:
    done = launch(
        *place, "-n", "3", "--protocol", "grpc", script, *(f"worker {i}=config" for i in range(3))
    )
    assert done.returncode == 0, done.stderr
    configs = [line for line in done.stdout.splitlines() if "{" in line]
    assert sorted(line.split("] ")[0] for line in configs) == [f"[worker {i}" for i in range(3)]
    assert all('"rpc_layer": "grpc"' in line and "chief" not in line for line in configs)


@pytest.mark.parametrize(
    "tasks",
    [
        ["--ps", "2", "--no-chief", "ps 0=serve", "ps 1=serve"],
        ["--ps", "1", "ps 0=serve", "worker 0=serve"],
    ],
    ids=["parameter servers", "and workers of a chief"],
)
def test_servers_end_with_those_they_serve(script: Path, place: Place, tasks: list[str]) -> None:
    options = [word for word in tasks if "=" not in word]
    done = launch(*place, *options, script, *tasks[len(options) :])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("deed", "status", "words"),
    [("fail", 3, "exited with status 3"), ("die", 128 + 9, "was ended by SIGKILL")],
)
def test_the_first_failure_ends_all(
    script: Path, place: Place, deed: str, status: int, words: str
) -> None:
    others = ["worker 0=serve", "worker 2=parent"]
    done = launch(
        *place,
        "-n",
        "3",
        "--ps",
        "1",
        script,
        "ps 0=serve",
        "chief 0=serve",
        *others,
        f"worker 1={deed}",
    )
    assert done.returncode == status, done.stderr
    assert f"rdmatensor launch: worker 1 {words}" in done.stderr


def test_failed_tasks_are_started_anew(script: Path, place: Place, tmp_path: Path) -> None:
    deeds = [f"worker {each}=once {tmp_path / str(each)}" for each in (0, 2)]
    done = launch(*place, "-n", "3", "--restarts", "2", script, *deeds)
    assert done.returncode == 0, done.stderr
    assert Counter(done.stdout.split()) == {"[worker": 5, "0]": 2, "1]": 1, "2]": 2, "begins": 5}
    assert len(re.findall("worker [02] exited with status 5 and is started anew", done.stderr)) == 2


def test_tasks_are_started_anew_so_many_times(script: Path) -> None:
    done = launch("-n", "2", "--restarts", "2", script, "worker 0=serve", "worker 1=fail")
    assert done.returncode == 3
    assert done.stderr.count("is started anew") == 2
    assert "worker 1 exited with status 3; all tasks are ended" in done.stderr


def test_what_a_task_leaves_behind_is_ended(script: Path, place: Place) -> None:
    assert launch(*place, "-n", "2", script, "worker 0=parent").returncode == 0


def test_any_output_is_passed_on(script: Path, place: Place) -> None:
    done = subprocess.run(
        command(*place, "-n", "1", script, "worker 0=bytes"),
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
    )
    assert done.stdout.count(b"\xff") == 70000
    lines = done.stdout.splitlines()
    assert all(line.startswith(b"[worker 0] ") for line in lines)
    assert lines[-1] == b"[worker 0] rest"


def test_output_that_nobody_reads_is_no_failure(script: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command("-n", "2", script), stdout=write, stderr=subprocess.PIPE, timeout=SECONDS
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_hosts_get_folder_variables_and_secret(
    script: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAID_HERE", "a word; $HOME")
    monkeypatch.chdir(script.parent)
    done = launch(*place, "-n", "2", script.name, "worker 0=tell", "worker 1=tell")
    assert done.returncode == 0, done.stderr
    told = [json.loads(line.partition("] ")[2]) for line in done.stdout.splitlines() if "{" in line]
    assert [each["folder"] for each in told] == [str(script.parent)] * 2
    assert [each["word"] for each in told] == ["a word; $HOME"] * 2
    secrets = {each["secret"] for each in told}
    assert len(secrets) == 1, "all tasks have the same"
    assert not place or re.fullmatch("[0-9a-f]{64}", secrets.pop())


def test_a_lost_connection_is_told_and_ends_all(started: Started, place: Place) -> None:
    if not place:
        pytest.skip("no connections")
    process = started("serve")
    os.kill(agents_of(process.pid)[-1], signal.SIGKILL)
    assert process.wait(SECONDS) != 0
    assert process.stderr is not None
    assert re.search(
        rb"worker 1: the connection to \S+ was lost; all tasks are ended", process.stderr.read()
    )


def agents_of(launcher: int) -> list[int]:
    """The launcher's ends of the connections, in the order of the tasks that still run."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == launcher and "_tools.remote" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return sorted(found)


def test_a_host_that_cannot_be_reached_is_named(script: Path, place: Place) -> None:
    if not place:
        pytest.skip("no hosts")
    ssh = "ip netns exec" if "netns" in place[-1] else "ssh -o BatchMode=yes"
    hosts = "nowhere.invalid,other.invalid"
    done = launch("--hosts", hosts, "--ssh", ssh, script, "worker 0=serve", "worker 1=serve")
    assert done.returncode == 255, done.stderr
    assert re.search(
        r"worker \d: (nowhere|other).invalid cannot be reached, or has no", done.stderr
    )


Started = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def started(script: Path, place: Place) -> Iterator[Started]:
    """A launcher whose three tasks run, one with a child."""
    made = []

    def start(deed: str, grace: float = 0.1) -> subprocess.Popen[bytes]:
        deeds = ["worker 0=serve", f"worker 1={deed}", "ps 0=parent"]
        tasks = ["--grace", f"{grace}", "-n", "2", "--ps", "1", "--no-chief"]
        # A background shell's commands have SIGINT ignored, and hand that on.
        process = subprocess.Popen(
            [
                "env",
                "--default-signal=HUP,INT,TERM",
                *command(*place, *tasks, script, *deeds),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        made.append(process)
        assert process.stdout is not None
        said: Counter[bytes] = Counter()
        while said[b"serves"] < 2 or said[b"begins"] < 3:
            said[process.stdout.readline().strip().split(b"] ")[1]] += 1
        return process

    yield start
    for process in made:
        with process:
            process.kill()


@pytest.mark.parametrize(
    ("number", "deed"),
    [
        (signal.SIGINT, "serve"),
        (signal.SIGHUP, "serve"),
        (signal.SIGTERM, "stubborn"),
        (signal.SIGKILL, "stubborn"),
    ],
)
def test_an_ended_launcher_leaves_no_task(
    started: Started, number: signal.Signals, deed: str
) -> None:
    process = started(deed)
    process.send_signal(number)
    expected = -9 if number == signal.SIGKILL else 128 + number
    assert process.wait(SECONDS) == expected


def test_tasks_may_save_until_the_next_interrupt(started: Started) -> None:
    process = started("stubborn", 2 * SECONDS)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    while b"saves" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py"], "missing.py does not exist"),
        (["."], ". is not a readable file"),
        (["-n", "0", "missing.py"], "0 is not in the range"),
        (["--ps", "-1", "missing.py"], "-1 is not in the range"),
        (["--hosts", "a,,b", __file__], "'' is not NAME or NAME=ADDRESS"),
        (["--hosts", "a,b", "-n", "3", __file__], "3 tasks are needed, but the hosts have 2"),
        (["--hosts", "a,b", "--ps", "1", __file__], "3 tasks are needed, but the hosts have 2"),
        (["-H", "a:x", __file__], "'a:x' is not HOST:N"),
        (["-np", "3", "-H", "a:2", __file__], "3 tasks are needed, but the hosts have 2"),
        (["-np", "3", "-H", "localhost:2", __file__], "3 tasks are needed, but localhost has 2"),
        (["-H", "localhost,b", __file__], "name this machine by an address"),
        (["-H", "a", "--hosts", "b", __file__], "give one of --hosts, -H and --hostfile"),
        (["--protocol", "rdma", "missing.py"], "'rdma' is not one of 'grpc+rdma', 'grpc'"),
        ([], "Missing argument 'SCRIPT"),
        (["python"], "there is no program"),
        (["python", "-u", "missing.py"], "missing.py does not exist"),
        (["-m"], "there is no program"),
        (["--metrics-port", "9100", "python", "-c", "1"], "needs a script or a module, not -c"),
        (["--jax", "python", "-c", "1"], "--jax needs a script or a module, not -c"),
        (["--jax", "--ps", "1", __file__], "leave --ps out"),
    ],
)
def test_wrong_use_is_explained(arguments: list[str], words: str) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("metrics", [[], ["--metrics-port", "0"]], ids=["plain", "served"])
@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["-m", "train"],
        ["python", "train.py"],
        [sys.executable, "-X", "dev", "-u", "-m", "train"],
    ],
    ids=["script", "module", "python", "options"],
)
def test_a_program_is_named_as_for_python(
    script: Path, words: list[str], metrics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    if metrics:
        metrics = ["--metrics-port", str(free_ports(1)[0])]
    done = launch(*metrics, *words, "-n", "worker 0=config")
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "worker 0=config" in line]
    assert said.endswith("train.py', '-n', 'worker 0=config']")


def test_reserved_addresses_are_for_servers_only() -> None:
    with reserved_addresses(3) as addresses:
        assert len(set(addresses)) == 3
        port = int(addresses[0].rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("0.0.0.0", port))
            server.listen()


_BAR = """
import sys, time
for i in range(3):
    sys.stdout.write("\\b" * 5 + "\\r" + f"bar {i}")
    sys.stdout.flush()
    time.sleep(0.01)
print("\\nend\\r\\nlast")
"""


def test_progress_bar_without_a_terminal_is_its_last_state(tmp_path: Path) -> None:
    program = tmp_path / "bar.py"
    program.write_text(_BAR)
    done = subprocess.run(
        command("-n", "1", program), capture_output=True, timeout=SECONDS, check=False
    )
    lines = [b"[worker 0] bar 2", b"[worker 0] end", b"[worker 0] last"]
    assert done.stdout.splitlines() == lines, done.stderr


def test_progress_bar_on_a_terminal_stays_one_line(tmp_path: Path) -> None:
    program = tmp_path / "bar.py"
    program.write_text(_BAR)
    reader, writer = pty.openpty()
    try:
        subprocess.run(command("-n", "1", program), stdout=writer, timeout=SECONDS, check=True)
        shown = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        os.close(writer)
    plain = re.sub(rb"\x1b\[[\d;]*m", b"", shown)
    assert plain == (
        b"[worker 0] bar 0\r\x1b[K[worker 0] bar 1\r\x1b[K[worker 0] bar 2\r\n"
        b"[worker 0] end\r\n[worker 0] last\r\n"
    )
