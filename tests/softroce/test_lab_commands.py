# SPDX-License-Identifier: Apache-2.0
"""Commands in a guest: statuses, streams, signals, files."""

from __future__ import annotations

import hashlib
import re
import signal
import threading
from pathlib import Path

import pytest

from rdmatensor.softroce import DeadlineExceeded, Host, Lab, LabError
from support import waits


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


def test_status_and_separate_streams(host: Host) -> None:
    done = host.run(["sh", "-c", "echo out; echo err >&2; exit 7"], check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_a_failure_is_an_error_when_checked(host: Host) -> None:
    with pytest.raises(LabError, match="on host0: 3\nbecause"):
        host.run(["sh", "-c", "echo because >&2; exit 3"])


def test_a_command_that_is_not_there(host: Host) -> None:
    done = host.run(["no-such-command"], check=False)
    assert done.returncode == 127
    assert "no-such-command" in done.stderr
    assert host.run(["/etc/passwd"], check=False).returncode == 126


def test_output_is_live(host: Host) -> None:
    process = host.start(["sh", "-c", "echo first; read line; echo got $line"], stdin=True)
    process.wait_for_output("^first$")
    assert process.returncode is None
    process.write(b"more\n")
    assert process.wait() == 0
    assert process.stdout == b"first\ngot more\n"


def test_input_ends_at_once_without_stdin(host: Host) -> None:
    assert host.run(["cat"]).stdout == ""


def test_megabytes_both_ways(host: Host) -> None:
    data = bytes(range(256)) * 12000  # more than every buffer on the way
    process = host.start(["cat"], stdin=True)
    process.write(data)
    process.close_stdin()
    assert process.wait() == 0
    assert hashlib.sha256(process.stdout).digest() == hashlib.sha256(data).digest()


def test_environment_and_folder(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMATENSOR_PASSED", "yes")
    monkeypatch.setenv("NOT_PASSED", "no")
    command = 'pwd; echo "$RDMATENSOR_PASSED-$NOT_PASSED-$GIVEN"; echo $RDMATENSOR_LAB_ADDRESSES'
    done = host.run(["sh", "-c", command], env={"GIVEN": "two words\nand lines"}, cwd="/usr/lib")
    assert done.stdout == "/usr/lib\nyes--two words\nand lines\n10.77.0.1\n"


def test_kill_hits_one_process_alone(host: Host) -> None:
    script = "sleep 1000 & echo $!; wait"
    process = host.start(["sh", "-c", script])
    child = process.wait_for_output(r"^\d+$")[0]
    process.kill()
    assert process.wait() == -signal.SIGKILL
    host.run(["kill", "-0", child])  # goes on
    host.run(["kill", "-9", child])


def test_a_signal_for_the_group(host: Host) -> None:
    process = host.start(["sh", "-c", "sleep 1000 & echo $!; wait"])
    child = process.wait_for_output(r"^\d+$")[0]
    process.send_signal(signal.SIGTERM, group=True)
    assert process.wait() == -signal.SIGTERM
    is_over = ["sh", "-c", f"! kill -0 {child} 2>/dev/null"]
    waits.until("the child goes on", lambda: host.run(is_over, check=False).returncode == 0)


def test_many_at_once(host: Host) -> None:
    processes = [host.start(["sh", "-c", f"sleep 0.2; echo {i}; exit {i}"]) for i in range(8)]
    assert [process.wait() for process in processes] == list(range(8))
    assert [process.stdout for process in processes] == [b"%d\n" % i for i in range(8)]


def test_commands_from_several_threads(host: Host) -> None:
    results: dict[int, str] = {}

    def work(number: int) -> None:
        results[number] = host.run(["echo", str(number)]).stdout

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(4)}


def test_what_outlives_its_parent_does_not_keep_it(host: Host) -> None:
    process = host.start(["sh", "-c", "(sleep 1000; echo late) & echo $!"])
    assert process.wait() == 0
    host.run(["kill", "-9", process.stdout.decode().strip()])


def test_deadline_kills_the_command(host: Host) -> None:
    with pytest.raises(DeadlineExceeded, match=r"sleep 1234.*after 0.3 s"):
        host.run(["sleep", "1234"], timeout=0.3)
    find = "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline; echo; done 2>/dev/null"
    assert "sleep 1234" not in host.run(["sh", "-c", find]).stdout


def test_files_are_seen_and_changes_stay_inside(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from here")
    command = "cat file; echo changed >file; rm -rf /usr/bin/env; cat file"
    done = host.run(["sh", "-c", command], cwd=tmp_path)
    assert done.stdout == "from herechanged\n"
    assert (tmp_path / "file").read_text() == "from here"
    assert Path("/usr/bin/env").exists()


def test_shared_folder(lab: Lab, host: Host) -> None:
    (lab.shared / "in").write_text("hello")
    host.run(["sh", "-c", 'cd "$RDMATENSOR_LAB_SHARED" && tr a-z A-Z <in >out'])
    assert (lab.shared / "out").read_text() == "HELLO"


def test_a_guest_is_fit_for_rdma(host: Host) -> None:
    command = (
        "ulimit -l; df /dev/shm | tail -1; cat /sys/class/net/lo/operstate; ls /dev/infiniband"
    )
    out = host.run(["sh", "-c", command]).stdout
    assert out.startswith("unlimited\n")
    assert "/dev/shm" in out
    assert "rdma_cm" in out
    assert "uverbs0" in out


def test_the_clock_goes_right(host: Host) -> None:
    """It was told the frequency of its time stamp counter; what it found by itself agrees."""
    said = host.run(["sh", "-c", "dmesg | grep -o 'tsc: .*MHz'; cat /proc/cmdline"]).stdout
    told = re.search(r"tsc_early_khz=(\d+)", said)
    if not told:
        pytest.skip("with KVM, the host tells")
    found = [float(each) for each in re.findall(r"([0-9.]+) MHz", said)]
    assert found
    assert found == pytest.approx([int(told[1]) / 1000] * len(found), rel=0.01)


def test_terminal(host: Host) -> None:
    process = host.start(
        ["sh", "-c", "tty; stty size; read line; echo got $line"], terminal="33 99"
    )
    process.wait_for_output("/dev/pts/0\r\n33 99")
    process.write(b"word\r")
    process.wait_for_output("got word")
    assert process.wait() == 0
