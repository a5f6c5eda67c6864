# SPDX-License-Identifier: Apache-2.0
"""Native mode and the doctor where the kernel has SoftRoCE: inside a guest. A lab within the lab."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rdmatensor.softroce import Host, Lab
from softroce.processes import Softroce, command_line

DEVICES = "ls /sys/class/infiniband /sys/class/net"


@pytest.fixture
def host(lab: Lab) -> Host:
    return lab.hosts[0]


@pytest.fixture
def bare(host: Host) -> Iterator[Host]:
    """A host whose device somebody has taken away."""
    host.run(["rdma", "link", "delete", "rxe0"])
    yield host
    host.run(
        ["sh", "-c", "[ -e /sys/class/infiniband/rxe0 ] || rdma link add rxe0 type rxe netdev eth0"]
    )


def test_an_existing_device_is_used(host: Host) -> None:
    script = "echo $RDMATENSOR_LAB_DEVICE $RDMATENSOR_LAB_ADDRESSES; cat /sys/class/infiniband/rxe0/parent"
    done = host.run(command_line("run", "--", "sh", "-c", f"{script}; exit 6"), check=False)
    assert (done.returncode, done.stdout) == (6, "rxe0 10.77.0.1\neth0\n"), done.stderr
    assert host.run(["ls", "/sys/class/infiniband"]).stdout == "rxe0\n"


def test_a_device_is_made_and_removed(bare: Host) -> None:
    before = bare.run(["sh", "-c", DEVICES]).stdout
    script = "cat /sys/class/infiniband/*/parent; ulimit -l; sleep 1000"
    done = bare.run(
        command_line("run", "--native", "--timeout", "5", "--", "sh", "-c", script), check=False
    )
    assert done.returncode == 124, done.stderr
    assert done.stdout == "rdmalab0\nunlimited\n"
    assert bare.run(["sh", "-c", DEVICES]).stdout == before


def test_doctor_finds_it(host: Host) -> None:
    out = host.run(command_line("doctor"), env={"COLUMNS": "200"}).stdout
    assert "rxe0 on eth0, 10.77.0.1" in out
    assert "uses this kernel's SoftRoCE" in out


def test_doctor_here(lab: Lab, softroce: Softroce) -> None:
    done = softroce("doctor", COLUMNS="200")
    assert done.returncode == 0
    assert "rdmatensor softroce run` uses" in done.stdout


def test_doctor_tells_what_is_missing(softroce: Softroce, tmp_path: Path) -> None:
    done = softroce("doctor", PATH=str(tmp_path), COLUMNS="200", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "does not work here yet" in done.stdout
    assert "apt-get install --no-install-recommends" in done.stdout
    assert "qemu-system-x86" in done.stdout


def test_no_native_device_without_a_kernel_that_has_it(softroce: Softroce) -> None:
    if Path("/sys/class/infiniband").is_dir() or Path("/sys/module/rdma_rxe").exists():
        pytest.skip("this kernel has SoftRoCE")
    done = softroce("run", "--native", "--", "true")
    assert done.returncode == 125
    assert "no module rdma_rxe" in done.stderr
