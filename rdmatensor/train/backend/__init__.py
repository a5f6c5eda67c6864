# SPDX-License-Identifier: Apache-2.0
"""What the rest of rdmatensor.train asks of a framework."""
