# SPDX-License-Identifier: Apache-2.0
"""The examination of this machine for `rdmatensor doctor`."""
