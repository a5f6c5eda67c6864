# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface over rdmatensor: a program changes its import line.

`import horovod.torch as hvd` becomes `import rdmatensor.horovod.torch as hvd`; likewise `tensorflow`,
`tensorflow.keras` and `keras`. docs/horovod.md says what differs.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .absent import refuse as _refuse

if not _TYPE_CHECKING:
    __getattr__ = _refuse(__name__)
