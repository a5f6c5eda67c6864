# SPDX-License-Identifier: Apache-2.0
"""What a process group says about itself, and what torch sets, by the names that torch looks for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch

from .arrays import no_backend
from .devices import OtherDevices

#: The types of devices whose tensors the backend moves, unless the program names another one for them.
DEVICES = ("cpu", "cuda")


class Identity:
    """The names, the store and the devices of a process group."""

    def __init__(self, store: Any, name: str) -> None:
        self._store = store
        self._name = name
        self._description = ""
        self._others: OtherDevices | None = None

    def getBackendName(self) -> str:  # noqa: N802
        """Return the name of the backend."""
        return "rdmatensor"

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        """Return torch's name of the process group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set torch's name of the process group."""
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        """Torch's name of the process group."""
        return self._name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description of the process group."""
        return self._description

    def setGroupDesc(self, text: str) -> None:  # noqa: N802
        """Set the description of the process group."""
        self._description = text

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self) -> str:
        """The description of the process group."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        others = self._other_types()
        here = torch.cuda.is_available()
        own = [each for each in DEVICES if each not in others and (each == "cpu" or here)]
        return [torch.device(each) for each in (*own, *others)]

    def _moves(self, kind: str) -> bool:
        """Return whether tensors of this type of device are this backend's."""
        return kind in DEVICES and kind not in self._other_types()

    def _other_types(self) -> Mapping[str, str]:
        return {} if self._others is None else self._others.named(self)

    def _other_groups(self) -> list[Any]:
        return [] if self._others is None else self._others.made()

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend for a device. Raises RuntimeError if the program has named none for it.

        Before torch has entered the process group, it is this one for all devices: others connect later.
        """
        kind = torch.device(device).type
        if self._moves(kind) or (self._others is not None and not self._others.known(self)):
            return self
        return self._for_device(kind)._get_backend(torch.device(kind))

    def _for_device(self, kind: str) -> Any:
        """Return torch's process group for tensors of a device. Raises RuntimeError if there is none."""
        if self._others is None:
            raise no_backend(kind)
        return self._others.group(self, kind)

    def eager_connect_single_device(self, _device: torch.device) -> None:
        """Do nothing: backends of other devices connect when they are first needed."""

    def get_group_store(self) -> Any:
        """Return the store in which the members met."""
        return self._store

    @property
    def supports_coalescing(self) -> bool:
        """Whether operations can be started together."""
        return True

    @property
    def supports_splitting(self) -> bool:
        """Whether split_group() makes smaller groups."""
        return True

    @property
    def supports_time_estimate(self) -> bool:
        """Whether the time of operations can be estimated without running them."""
        return False


def seconds(timeout: timedelta | float) -> float:
    """Return a time-out in seconds."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
