# SPDX-License-Identifier: Apache-2.0
# Whether the verbs transport can be built: it needs the headers of rdma-core, and no library, because
# libibverbs is opened at run time. Sets verbs_reason (empty when built).

include(CheckCSourceCompiles)

# Asked anew by every configure: the headers may have been installed since.
unset(RDT_HAS_VERBS_HEADER CACHE)
unset(RDT_HAS_VERBS_HEADER_37 CACHE)
set(CMAKE_REQUIRED_QUIET ON)
check_c_source_compiles("#include <infiniband/verbs.h>
int main(void) { return IBV_QPT_RC; }" RDT_HAS_VERBS_HEADER)
check_c_source_compiles("#include <infiniband/verbs.h>
int main(void) { return IBV_FORK_UNNEEDED; }" RDT_HAS_VERBS_HEADER_37)
unset(CMAKE_REQUIRED_QUIET)

set(verbs_reason "")
if(NOT RDT_HAS_VERBS_HEADER)
  set(verbs_reason "no infiniband/verbs.h (apt install libibverbs-dev)")
elseif(NOT RDT_HAS_VERBS_HEADER_37)
  set(verbs_reason "infiniband/verbs.h is older than rdma-core 37")
endif()
