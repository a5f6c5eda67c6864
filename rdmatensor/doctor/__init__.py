# SPDX-License-Identifier: Apache-2.0
"""What `rdmatensor doctor` and `rdmatensor info` find out about this machine."""
