# SPDX-License-Identifier: Apache-2.0
"""Peers in the hosts of a lab: those of tests/transport, told from outside what to do."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from rdmatensor.softroce import Host, LabError, Process
from support.peers import PROGRAM, SETUP, Nursery, Peer

FOREVER = 1e9


class Site(Nursery):
    """Makes peers in one host; their devices use verbs and listen on the host's address."""

    def __init__(
        self,
        host: Host,
        python: str = sys.executable,
        modules: Sequence[str] = ("numpy", "rdmatensor.group"),
    ) -> None:
        """`python` is the interpreter of the peers, `modules` what is imported before they are made."""
        self.host = host
        self._command = [python, str(PROGRAM), *modules]
        self._made: list[Peer] = []
        self._process: Process
        self._watcher: threading.Thread
        self._heard = 0  # bytes of its standard error, by tests before
        super().__init__(lambda data: self._process.write(data))
        self._start()

    def _start(self) -> None:
        self.forget_half_frames()
        self._process = self.host.start(self._command, stdin=True, stdout=self.feed)
        self._watcher = threading.Thread(target=self._watch, args=[self._process], daemon=True)
        self._watcher.start()

    def _watch(self, process: Process) -> None:
        try:
            how = f"the nursery ended with {process.wait(FOREVER)}: {process.stderr.decode()}"
        except LabError as error:
            how = str(error)
        self.end(how)

    def peer(self, **settings: str | int) -> Peer:
        """A peer with a device, in the host, with these settings in its environment."""
        variables = {f"RDMATENSOR_{name}": str(value) for name, value in settings.items()}
        variables.setdefault("RDMATENSOR_TRANSPORTS", "verbs")
        variables["RDMATENSOR_BIND_ADDRESS"] = self.host.address
        return self._keep(self.spawn(variables, SETUP, device=""))

    def process(self, **settings: str) -> Peer:
        """A peer without a device, nor anything else but these settings."""
        variables = {f"RDMATENSOR_{name}": value for name, value in settings.items()}
        return self._keep(self.spawn(variables, setup=""))

    def _keep(self, peer: Peer) -> Peer:
        self._made.append(peer)
        return peer

    def says(self, words: str, seconds: float = 60) -> bool:
        """Whether a peer of this test has written this to its standard error, or does so soon."""
        end = time.monotonic() + seconds
        while words.encode() not in self._process.stderr[self._heard :]:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def clear(self) -> None:
        """Ends the peers of a test; the host boots again if the test killed it."""
        alive = self.host.alive
        if not alive:
            self._watcher.join()  # it tells the peers
        made, self._made = self._made, []
        for peer in made:
            peer.close()
        if not alive:
            self.host.restart()
            self._start()
        self._heard = len(self._process.stderr)

    def close(self) -> None:
        self.clear()
        self._process.close_stdin()
        self._process.wait()
