# SPDX-License-Identifier: Apache-2.0
"""`rdmatensor simulate`: synchronizers on simulated clusters, with real gradients and an event clock."""
