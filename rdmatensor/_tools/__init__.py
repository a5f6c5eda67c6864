# SPDX-License-Identifier: Apache-2.0
"""What the commands do: starting and watching processes, measuring, tracing."""
