// SPDX-License-Identifier: Apache-2.0
//
// Hands each message of a channel to the part that handles it.
#ifndef RDMATENSOR_TENSORFLOW_SERVICE_MESSAGES_H_
#define RDMATENSOR_TENSORFLOW_SERVICE_MESSAGES_H_

#include <cstddef>
#include <cstdint>

#include "channel/peer_channel.h"
#include "service/peer_table.h"

namespace rdmatensor {

// Hands a message that came over `channel` to the part that handles it. Every message is checked, because none
// may harm this process. `new_callee` serves callers; nullptr: nobody may call. False if the peer broke the protocol.
// Progress thread.
bool HandleMessage(PeerTable* peers, const NewCallee* new_callee, PeerChannel* channel,
                   uint64_t immediate, const char* data, size_t size);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_SERVICE_MESSAGES_H_
