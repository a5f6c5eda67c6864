/* SPDX-License-Identifier: Apache-2.0
 *
 * What a peer over verbs says: its address, its regions, and, once connected, what it writes into our ring and
 * credit words and the immediates it sends. The device is played by this program; all else is the transport's.
 */
#include <arpa/inet.h>

#include "base/status.h"
#include "fuzz.h"
#include "transport/verbs/objects.h"

#define CAPACITY RDT_RECORDS_MIN_CAPACITY
#define CREDIT_BYTES 4096u
#define DEPTH 64u
#define STEPS 200
#define PEER_RING 0x10000000u
#define PEER_CREDIT 0x20000000u
#define PENDING 256u

/* ---- addresses ----------------------------------------------------------------------------------- */

static void check_address(const uint8_t *data, size_t size) {
  rdt_bundle bundle = {.size = size < sizeof(bundle.bytes) ? size : sizeof(bundle.bytes)}, again;
  rdt_verbs_address address;
  memcpy(bundle.bytes, data, bundle.size);
  if (rdt_verbs_address_decode(&bundle, &address) != RDT_OK) return;
  FUZZ_EXPECT(address.queue_count > 0 && address.queue_count <= RDT_VERBS_MAX_QUEUES);
  FUZZ_EXPECT(address.mtu >= IBV_MTU_256 && address.mtu <= IBV_MTU_4096 && address.reads > 0);
  FUZZ_EXPECT(rdt_records_valid_capacity(address.ring_capacity));
  FUZZ_EXPECT(rdt_verbs_address_encode(&address, &again) == RDT_OK);
  FUZZ_EXPECT(again.size == bundle.size && memcmp(again.bytes, bundle.bytes, again.size) == 0);
}

static void check_region(const uint8_t *data, size_t size) {
  rdt_bundle bundle = {.size = size < sizeof(bundle.bytes) ? size : sizeof(bundle.bytes)}, again;
  uint64_t address;
  rdt_verbs_keys keys;
  memcpy(bundle.bytes, data, bundle.size);
  if (rdt_verbs_region_decode(&bundle, &address, &keys) != RDT_OK) return;
  FUZZ_EXPECT(keys.count > 0 && keys.count <= RDT_VERBS_MAX_QUEUES);
  FUZZ_EXPECT(rdt_verbs_region_encode(address, &keys, &again) == RDT_OK);
  FUZZ_EXPECT(again.size == bundle.size && memcmp(again.bytes, bundle.bytes, again.size) == 0);
}

/* ---- the device -------------------------------------------------------------------------------------- */

static struct ibv_wc pending[PENDING]; /* completions not polled yet */
static size_t pending_count;
static uint64_t signaled[DEPTH]; /* identities of requests that will complete */
static size_t signaled_count;
static rdt_endpoint *tested;

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *into) {
  int count = 0;
  (void)cq;
  while (count < most && pending_count > 0) {
    into[count++] = pending[0];
    memmove(pending, pending + 1, --pending_count * sizeof(pending[0]));
  }
  return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited) {
  (void)cq, (void)solicited;
  return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *requests,
                         struct ibv_recv_wr **bad) {
  (void)srq, (void)requests, (void)bad;
  return 0;
}

static bool inside(uint64_t at, uint64_t size, uint64_t start, uint64_t length) {
  return at >= start && at - start <= length && size <= length - (at - start);
}

/* Only our own memory is sent, and only to where the peer said its ring and credit are. */
static void check_request(const struct ibv_send_wr *request) {
  uint64_t size = request->num_sge ? request->sg_list[0].length : 0;
  uint64_t to = request->wr.rdma.remote_addr;
  FUZZ_EXPECT(inside(to, size, PEER_RING, CAPACITY) ||
              inside(to, size, PEER_CREDIT, sizeof(rdt_verbs_credit)));
  if (size == 0) return;
  uint64_t from = request->sg_list[0].addr;
  FUZZ_EXPECT(inside(from, size, (uintptr_t)tested->outbound.start, tested->outbound.size) ||
              inside(from, size, (uintptr_t)tested->inbound.start, tested->inbound.size));
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *requests, struct ibv_send_wr **bad) {
  (void)qp, (void)bad;
  for (; requests; requests = requests->next) {
    check_request(requests);
    if (!(requests->send_flags & IBV_SEND_SIGNALED)) continue;
    FUZZ_EXPECT(signaled_count < DEPTH);
    signaled[signaled_count++] = requests->wr_id;
  }
  return 0;
}

static struct ibv_context context = {.ops = {.poll_cq = poll_cq,
                                             .req_notify_cq = req_notify_cq,
                                             .post_srq_recv = post_srq_recv,
                                             .post_send = post_send}};
static struct ibv_cq cq = {.context = &context};
static struct ibv_srq srq = {.context = &context};
static struct ibv_qp qp = {.context = &context};
static struct ibv_mr mr;
static rdt_verbs_port port = {.max_message = CAPACITY / 2};

static void complete(struct ibv_wc completion) {
  if (pending_count < PENDING) pending[pending_count++] = completion;
}

/* ---- an endpoint ----------------------------------------------------------------------------------- */

static rdt_verbs_block new_block(size_t size) {
  rdt_verbs_block block = {.start = aligned_alloc(64, size), .size = size, .mr = &mr};
  FUZZ_EXPECT(block.start);
  memset(block.start, 0, size);
  return block;
}

static rdt_endpoint *new_endpoint(rdt_domain *domain) {
  rdt_endpoint *endpoint = calloc(1, sizeof(*endpoint));
  FUZZ_EXPECT(endpoint);
  endpoint->domain = domain;
  endpoint->cq = &cq;
  endpoint->queue_count = 1;
  endpoint->queues[0].qp = &qp;
  endpoint->queues[0].depth = DEPTH;
  endpoint->queues[0].pieces = calloc(DEPTH, sizeof(rdt_verbs_piece));
  endpoint->inbound = new_block(CREDIT_BYTES + CAPACITY);
  endpoint->outbound = new_block(CAPACITY);
  endpoint->credit_in = endpoint->inbound.start;
  endpoint->credit_out = (rdt_verbs_credit *)((char *)endpoint->inbound.start + 64);
  rdt_records_init(&endpoint->receive, (char *)endpoint->inbound.start + CREDIT_BYTES, CAPACITY);
  rdt_records_init(&endpoint->mirror, endpoint->outbound.start, CAPACITY);
  endpoint->remote = (rdt_verbs_address){.ring = PEER_RING,
                                         .ring_capacity = CAPACITY,
                                         .credit = PEER_CREDIT,
                                         .notifies = RDT_VERBS_NOTIFY_RECEIVES};
  return endpoint;
}

static void free_endpoint(rdt_endpoint *endpoint) {
  free(endpoint->queues[0].pieces);
  free(endpoint->inbound.start);
  free(endpoint->outbound.start);
  free(endpoint);
}

static void notified(void *unused, uint64_t immediate, const void *data, size_t size) {
  static volatile uint8_t last;
  const uint8_t *start = (uint8_t *)tested->inbound.start + CREDIT_BYTES, *bytes = data;
  (void)unused, (void)immediate;
  FUZZ_EXPECT(bytes >= start && size <= (size_t)(start + CAPACITY - bytes));
  for (size_t i = 0; i < size; i++) last = bytes[i];
  (void)last;
}

static void completed(void *unused, rdt_request *request, rdt_status status) {
  (void)unused, (void)request, (void)status;
  FUZZ_EXPECT(!"nothing that was posted has a request");
}

/* ---- what the peer does ------------------------------------------------------------------------------- */

static void write_ring(fuzz_input *input) {
  uint8_t how = fuzz_u8(input);
  uint64_t next = tested->receive.position & (CAPACITY - 1);
  size_t at = how & 1 ? next : fuzz_u16(input) % CAPACITY, size;
  const uint8_t *bytes = fuzz_chunk(input, &size);
  if (size > CAPACITY - at) size = CAPACITY - at;
  memcpy((uint8_t *)tested->inbound.start + CREDIT_BYTES + at, bytes, size);
}

static void write_header(fuzz_input *input) {
  uint64_t at = tested->receive.seen & (CAPACITY - 1);
  rdt_record_header record = {.size = fuzz_u8(input) * 4u, .kind = fuzz_u8(input) % 4u};
  if (CAPACITY - at < sizeof(record)) return;
  memcpy((uint8_t *)tested->inbound.start + CREDIT_BYTES + at, &record, sizeof(record));
}

static void write_credit(fuzz_input *input) {
  uint8_t how = fuzz_u8(input);
  uint64_t consumed = fuzz_number(input, how & 1 ? 8 : 2),
           granted = fuzz_number(input, how & 2 ? 8 : 1);
  atomic_store(&tested->credit_in->consumed, how & 4 ? tested->published : consumed);
  atomic_store(&tested->credit_in->receives, how & 8 ? tested->notifies : granted);
}

static void send_immediate(fuzz_input *input) {
  uint8_t how = fuzz_u8(input);
  complete((struct ibv_wc){.wr_id = RDT_VERBS_RECEIVE_ID,
                           .status = how == 255 ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS,
                           .wc_flags = how & 1 ? IBV_WC_WITH_IMM : 0,
                           .imm_data = htonl((uint32_t)fuzz_number(input, how & 2 ? 4 : 2))});
}

static void finish_oldest(fuzz_input *input) {
  if (signaled_count == 0) return;
  bool failed = fuzz_u8(input) == 255;
  complete((struct ibv_wc){.wr_id = signaled[0],
                           .status = failed ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS});
  memmove(signaled, signaled + 1, --signaled_count * sizeof(signaled[0]));
}

static bool poll_once(fuzz_input *input) {
  const rdt_events events = {NULL, notified, completed};
  return rdt_verbs_poll(tested, fuzz_u8(input) % 16, &events) >= 0;
}

static bool notify(fuzz_input *input) {
  static const uint8_t payload[CAPACITY / 4];
  uint64_t size = fuzz_u16(input) % (rdt_verbs_max_notify(tested) + 1);
  return rdt_verbs_notify(tested, 1, payload, size) != RDT_ERR_PROTOCOL;
}

static bool step(fuzz_input *input) {
  switch (fuzz_u8(input) % 10) {
    case 0:
      write_ring(input);
      return true;
    case 1:
      write_header(input);
      return true;
    case 2:
      write_credit(input);
      return true;
    case 3:
    case 4:
      send_immediate(input);
      return true;
    case 5:
      finish_oldest(input);
      return true;
    case 6:
      return notify(input);
    case 7:
      rdt_verbs_doorbell(tested);
      return true;
    case 8:
      if (rdt_verbs_probe(tested) == RDT_OK) rdt_verbs_arm(tested, fuzz_u8(input) & 1, false);
      return true;
    default:
      return poll_once(input);
  }
}

static void play(fuzz_input *input) {
  rdt_domain domain = {.srq = &srq, .choice = {.port = &port}};
  pending_count = signaled_count = 0;
  tested = new_endpoint(&domain);
  for (int i = 0; i < STEPS && input->left > 0; i++)
    if (!step(input)) break;
  free_endpoint(tested);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input input = {data, size};
  uint8_t what = fuzz_u8(&input);
  /* As opening a device would: it knows what failures are called. */
  if (what % 4 > 1 && !rdt_verbs_library()) return 0;
  if (what % 4 == 0)
    check_address(input.data, input.left);
  else if (what % 4 == 1)
    check_region(input.data, input.left);
  else
    play(&input);
  return 0;
}

/* ---- seeds ---------------------------------------------------------------------------------------------- */

static size_t seed_of_address(uint8_t *seed, size_t capacity, uint32_t queues) {
  fuzz_output out = {seed, 0, capacity};
  rdt_bundle bundle;
  rdt_verbs_address address = {.link_layer = IBV_LINK_LAYER_ETHERNET,
                               .mtu = IBV_MTU_1024,
                               .gid_type = RDT_VERBS_GID_ROCE_V2,
                               .reads = 16,
                               .notifies = RDT_VERBS_NOTIFY_RECEIVES,
                               .ring = PEER_RING,
                               .ring_capacity = CAPACITY,
                               .credit = PEER_CREDIT,
                               .rkey = 7,
                               .queue_count = queues};
  for (uint32_t i = 0; i < queues; i++) address.queues[i].qpn = 17 + i;
  FUZZ_EXPECT(rdt_verbs_address_encode(&address, &bundle) == RDT_OK);
  fuzz_put_number(&out, 0, 1);
  fuzz_put(&out, bundle.bytes, bundle.size);
  return out.size;
}

/* Records that come, are announced and taken, and others that go out; with credit for both. */
static size_t seed_of_traffic(uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  rdt_record_header record = {.size = 32, .kind = RDT_RECORD_MESSAGE, .immediate = 5};
  fuzz_put_number(&out, 2, 1);
  for (int i = 0; i < 4; i++) {
    fuzz_put_number(&out, 0, 1);
    fuzz_put_number(&out, 1, 1);
    fuzz_put_chunk(&out, &record, sizeof(record));
    fuzz_put_number(&out, 3 | 1 << 8 | 48 << 16, 4);
    fuzz_put_number(&out, 9 | 8 << 8, 2);
    fuzz_put_number(&out, 6 | 100 << 8, 3);
    fuzz_put_number(&out, 7, 1);
    fuzz_put_number(&out, 5, 2);
    fuzz_put_number(&out, 9 | 8 << 8, 2);
    fuzz_put_number(&out, 2 | 12 << 8, 2 + 2 + 1);
    fuzz_put_number(&out, 3 | 1 << 8, 4); /* credit */
    fuzz_put_number(&out, 8 | 1 << 8, 2);
  }
  return out.size;
}

size_t fuzz_seed(unsigned number, uint8_t *seed, size_t capacity) {
  fuzz_output out = {seed, 0, capacity};
  rdt_bundle bundle;
  rdt_verbs_keys keys = {2, {9, 10}};
  if (number < 2) return seed_of_address(seed, capacity, number ? RDT_VERBS_MAX_QUEUES : 1);
  if (number == 2) return seed_of_traffic(seed, capacity);
  if (number > 3) return 0;
  FUZZ_EXPECT(rdt_verbs_region_encode(PEER_RING, &keys, &bundle) == RDT_OK);
  fuzz_put_number(&out, 1, 1);
  fuzz_put(&out, bundle.bytes, bundle.size);
  return out.size;
}
