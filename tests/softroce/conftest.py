# SPDX-License-Identifier: Apache-2.0
"""Labs that tests share: booting takes seconds, so each is booted once, when a test first asks for it.

Tests leave them as they found them: links up, no netem, every host alive.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdmatensor.softroce import Lab, Unavailable

# Test modules import the helpers beside them.
from softroce.guests import Site
from softroce.pairs import Hosts
from softroce.processes import PATIENCE, TEST_SECONDS, Softroce, command_line


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def booted(hosts: int) -> Iterator[Lab]:
    """A lab; without one here, tests are skipped with the reason, but never in CI."""
    lab = Lab(hosts, timeout=PATIENCE, boot_timeout=2 * PATIENCE)
    try:
        lab.__enter__()
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no SoftRoCE lab: {error}")
    with lab:
        yield lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab of one host, with the device rxe0: lab.hosts[0].run([...])."""
    yield from booted(1)


@pytest.fixture(scope="session")
def two_hosts() -> Iterator[Lab]:
    """A lab of two hosts joined by a network."""
    yield from booted(2)


@pytest.fixture
def softroce() -> Softroce:
    """Runs the command line to its end."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command_line(*arguments),
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=3 * PATIENCE,  # the boot and the command have their own
            check=False,
        )

    return run


@pytest.fixture(scope="module")
def sites(two_hosts: Lab) -> Iterator[Hosts]:
    first, second = (Site(host) for host in two_hosts.hosts)
    yield Hosts(two_hosts, first, second)
    first.close()
    second.close()


@pytest.fixture
def hosts(sites: Hosts) -> Iterator[Hosts]:
    yield sites
    for host in sites.lab.hosts:
        if host.alive:
            host.link(True)
    sites.first.clear()
    sites.second.clear()
