// SPDX-License-Identifier: Apache-2.0
#ifndef RDMATENSOR_TENSORFLOW_PEER_MESSAGES_H_
#define RDMATENSOR_TENSORFLOW_PEER_MESSAGES_H_

#include <cstddef>
#include <cstdint>

#include "peer/peer_channel.h"
#include "peer/peer_table.h"
#include "step/mailbox.h"

namespace rdmatensor {

// Gives a message of the peer at the other end of `channel` to the part that it is for. Every message is
// checked: none may harm this process. False: the peer broke the protocol. Progress thread.
bool HandleMessage(PeerTable* peers, MailboxTable* mailboxes, PeerChannel* channel,
                   uint64_t immediate, const char* data, size_t size);

}  // namespace rdmatensor

#endif  // RDMATENSOR_TENSORFLOW_PEER_MESSAGES_H_
