# SPDX-License-Identifier: Apache-2.0
"""Boots that go wrong."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from rdmatensor.softroce import Lab, LabError
from softroce.processes import PATIENCE, qemus_of
from support.waits import until


@pytest.mark.long
@pytest.mark.usefixtures("lab")  # skips where there can be none
def test_a_crash_while_booting_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = []

    def crash() -> None:
        until("QEMU does not start", lambda: qemus_of(tmp_path), PATIENCE)
        killed.extend(qemus_of(tmp_path))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=crash)
    thread.start()
    with Lab(timeout=PATIENCE) as lab:
        thread.join()
        assert killed
        assert lab.hosts[0].qemu_pid not in killed
        assert lab.hosts[0].run(["echo", "up"]).stdout == "up\n"
        with pytest.raises(LabError, match="inside its with"):
            lab.__enter__()


def test_the_secret_is_on_no_command_line(lab: Lab) -> None:
    """Any user of this machine sees them."""
    host = lab.hosts[0]
    secret = host.run(["cat", "/.rdmatensor-lab/secret"]).stdout.strip()
    assert len(secret) >= 32
    assert secret not in Path(f"/proc/{host.qemu_pid}/cmdline").read_text()
    assert secret not in host.run(["cat", "/proc/cmdline"]).stdout
