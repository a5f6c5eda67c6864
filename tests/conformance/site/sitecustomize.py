# SPDX-License-Identifier: Apache-2.0
"""Python imports this at the start of each process of a test file, because its folder is on PYTHONPATH.

Python goes on after an exception here, and the tests would run unobserved. So the process ends.
"""

import os
import sys
import traceback

if "CONFORMANCE_EVENTS" in os.environ:
    try:
        import conformance_hook

        conformance_hook.install()
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
