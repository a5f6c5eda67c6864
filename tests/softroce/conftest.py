# SPDX-License-Identifier: Apache-2.0
"""Labs that tests share: booting takes seconds, so each is booted once, when a test first asks for it, and
runs until no test of this folder is left.

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


_labs: dict[int, Lab] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if nextitem is None or nextitem.path.parent != Path(__file__).parent:
        while _labs:
            _labs.popitem()[1].close()


def _lab(hosts: int) -> Lab:
    """Without a lab here, tests are skipped with the reason, but never in CI."""
    if hosts not in _labs:
        lab = Lab(hosts, timeout=PATIENCE, boot_timeout=2 * PATIENCE)
        try:
            _labs[hosts] = lab.__enter__()
        except Unavailable as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no SoftRoCE lab: {error}")
    return _labs[hosts]


@pytest.fixture(scope="module")
def lab() -> Lab:
    """A lab of one host, with the device rxe0: lab.hosts[0].run([...])."""
    return _lab(1)


@pytest.fixture(scope="module")
def two_hosts() -> Lab:
    """A lab of two hosts joined by a network."""
    return _lab(2)


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
