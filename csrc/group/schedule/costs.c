/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicts costs. A message of b bytes takes latency + b * byte_ns. In a round all members work at
 * the same time, and the slowest counts. Members on one host share its link to other hosts, so
 * their traffic adds up; inside a host each receiver copies for itself. A reduction overlaps with
 * the transfer of the next piece, except in FLAT. The arithmetic is plain double in a fixed order,
 * so members that run the same build choose the same algorithm.
 */
#include "group/schedule/costs.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The cost of each further message of a round, as a share of the latency of the first. */
#define FURTHER_MESSAGE 0.3
/* The share of a reduction's time that reading more of the member's own input adds. */
#define OWN_INPUT (1.0 / 12)
/* Several hosts that send to one at once overflow queues in the network, and bytes are sent again. Each
 * sender after the first adds this share to the time of the link, up to a limit. Measured over TCP through a
 * switch whose queues hold 50 ms: 0.17 with three senders, 0.17 to 0.46 with seven. */
#define FURTHER_SENDER 0.05
#define SENDERS_MOST 0.5
/* The bytes that a chain passes on at a time. */
#define CHAIN_BYTES 262144.0
#define NEVER 1e300
#define ROUNDING 1e-9

typedef struct layout {
  uint32_t size, hosts;
  uint32_t least, most; /* members on a host */
} layout;

/* One prediction. */
typedef struct estimate {
  const rdt_group_costs *costs;
  layout at;
  double bytes;         /* of input */
  rdt_group_pair worst; /* the slowest kind of pair in the group */
} estimate;

static double greater(double a, double b) { return a > b ? a : b; }

static layout lay_out(uint32_t size, const uint32_t *hosts) {
  layout found = {.size = size, .least = size};
  uint16_t members[RDT_COSTS_MEMBERS];
  memset(members, 0, size * sizeof *members);
  for (uint32_t rank = 0; rank < size; rank++) {
    if (hosts[rank] >= found.hosts) found.hosts = hosts[rank] + 1;
    members[hosts[rank]]++;
  }
  for (uint32_t host = 0; host < found.hosts; host++) {
    if (members[host] < found.least) found.least = members[host];
    if (members[host] > found.most) found.most = members[host];
  }
  return found;
}

/* Returns the rounds of a tree over so many members. */
static uint32_t rounds_up(uint32_t members) {
  return members <= 1 ? 0 : 32 - (uint32_t)__builtin_clz(members - 1);
}

/* Returns the time until the last of `messages` small messages of a round arrives. */
static double latency(const estimate *e, rdt_group_pair pair, double messages) {
  return messages < 1 ? 0 : e->costs->latency_ns[pair] * (1 + FURTHER_MESSAGE * (messages - 1));
}

static double latency_to_all(const estimate *e) { return latency(e, e->worst, e->at.size - 1.0); }

/* Returns the time of each byte between hosts if so many members send to a host at once. */
static double remote_byte_ns(const estimate *e, double senders) {
  const double more = senders < 1 ? 0 : FURTHER_SENDER * (senders - 1);
  return e->costs->byte_ns[RDT_PAIR_REMOTE] * (1 + (more < SENDERS_MOST ? more : SENDERS_MOST));
}

/* Every member sends `bytes` to every other one. Returns the time on a host with `here` members. */
static double transfers_on(const estimate *e, double here, double bytes) {
  const double others = e->at.size - here;
  return ((here - 1) * e->costs->byte_ns[RDT_PAIR_LOCAL] +
          here * others * remote_byte_ns(e, others)) *
         bytes;
}

static double transfers(const estimate *e, double bytes) {
  return greater(transfers_on(e, e->at.least, bytes), transfers_on(e, e->at.most, bytes));
}

static double reductions(const estimate *e, double operands, double bytes) {
  return e->costs->reduce_byte_ns * operands * bytes;
}

/* All members exchange parts of `bytes`, and reduce what they receive. */
static double reduce_parts(const estimate *e, double bytes) {
  return latency_to_all(e) + greater(transfers(e, bytes), reductions(e, e->at.size - 1.0, bytes));
}

static double hand_parts(const estimate *e, double bytes) {
  return latency_to_all(e) + transfers(e, bytes);
}

/* A step round the ring: only one member of a host sends to another host. */
static double ring_step(const estimate *e, double bytes, bool reduce) {
  const double transfer = e->costs->byte_ns[e->worst] * bytes;
  return e->costs->latency_ns[e->worst] +
         (reduce ? greater(transfer, reductions(e, 1, bytes)) : transfer);
}

/* Every member exchanges `bytes` with one other. */
static double pair_step(const estimate *e, rdt_group_pair pair, double bytes, bool reduce) {
  const double sharing = pair == RDT_PAIR_REMOTE ? e->at.most : 1;
  const double transfer = e->costs->byte_ns[pair] * sharing * bytes;
  return e->costs->latency_ns[pair] +
         (reduce ? greater(transfer, reductions(e, 1, bytes)) : transfer);
}

static double halving_all_reduce(const estimate *e) {
  const uint32_t bits = 31 - (uint32_t)__builtin_clz(e->at.size);
  const bool extra = e->at.size != 1u << bits;
  /* Returns the number of rounds in which all pairs are on one host. */
  const bool regular = !extra && e->at.least == e->at.most;
  const uint32_t local = !regular ? 0 : (uint32_t)__builtin_ctz(e->at.least);
  double sum = 0, bytes = e->bytes;
  if (extra) sum += pair_step(e, e->worst, bytes, true) + pair_step(e, e->worst, bytes, false);
  for (uint32_t bit = 0; bit < bits; bit++) {
    const rdt_group_pair pair = bit < local ? RDT_PAIR_LOCAL : e->worst;
    bytes /= 2;
    sum += pair_step(e, pair, bytes, true) + pair_step(e, pair, bytes, false);
  }
  return sum;
}

static double hierarchical_all_reduce(const estimate *e) {
  const layout *at = &e->at;
  const double part = e->bytes / at->least, share = part / at->hosts;
  const double local = e->costs->byte_ns[RDT_PAIR_LOCAL], others = at->hosts - 1.0;
  const double between = remote_byte_ns(e, at->least * others) * at->least * others * share;
  const double inside = greater(local, e->costs->reduce_byte_ns) * (at->most - 1.0) * part;
  return 2 * latency(e, RDT_PAIR_LOCAL, at->most - 1.0) + 2 * latency(e, RDT_PAIR_REMOTE, others) +
         inside + greater(between, reductions(e, others, share)) + between + local * e->bytes;
}

static double all_reduce(const estimate *e, rdt_algorithm algorithm) {
  const double members = e->at.size, part = e->bytes / members;
  switch (algorithm) {
    case RDT_ALGORITHM_FLAT:
      /* Reductions read shared memory in place, but also all of the member's own input. */
      if (e->worst == RDT_PAIR_LOCAL)
        return reduce_parts(e, e->bytes) + reductions(e, OWN_INPUT * (members - 1), e->bytes);
      return hand_parts(e, e->bytes) + reductions(e, members - 1, e->bytes);
    case RDT_ALGORITHM_HALVING:
      return halving_all_reduce(e);
    case RDT_ALGORITHM_RING:
      return (members - 1) * (ring_step(e, part, true) + ring_step(e, part, false));
    case RDT_ALGORITHM_DIRECT:
      return reduce_parts(e, part) + hand_parts(e, part);
    default:
      return hierarchical_all_reduce(e);
  }
}

/* The root's host has the most members, or the fewest: whichever is slower. */
static double from_root(const estimate *e, double bytes) {
  const double remote = e->at.size - e->at.least;
  const double local = e->at.most > 1 ? e->costs->byte_ns[RDT_PAIR_LOCAL] : 0;
  return latency_to_all(e) + (local + remote * e->costs->byte_ns[RDT_PAIR_REMOTE]) * bytes;
}

static double tree_broadcast(const estimate *e) {
  const uint32_t all = rounds_up(e->at.size), between = rounds_up(e->at.hosts);
  return between * pair_step(e, RDT_PAIR_REMOTE, e->bytes, false) +
         (all - between) * pair_step(e, RDT_PAIR_LOCAL, e->bytes, false);
}

static double chain_broadcast(const estimate *e) {
  const double first = e->bytes < CHAIN_BYTES ? e->bytes : CHAIN_BYTES;
  return (e->at.size - 1.0) * e->costs->latency_ns[e->worst] +
         e->costs->byte_ns[e->worst] * (e->bytes + (e->at.size - 2.0) * first);
}

static double hierarchical_broadcast(const estimate *e) {
  const double local = e->costs->byte_ns[RDT_PAIR_LOCAL], others = e->at.hosts - 1.0;
  return 2 * latency(e, RDT_PAIR_LOCAL, e->at.most - 1.0) + latency(e, RDT_PAIR_REMOTE, others) +
         local * (e->bytes / e->at.least + e->bytes) +
         e->costs->byte_ns[RDT_PAIR_REMOTE] * others * e->bytes;
}

static double broadcast(const estimate *e, rdt_algorithm algorithm) {
  switch (algorithm) {
    case RDT_ALGORITHM_FLAT:
      return from_root(e, e->bytes);
    case RDT_ALGORITHM_HALVING:
      return tree_broadcast(e);
    case RDT_ALGORITHM_RING:
      return chain_broadcast(e);
    case RDT_ALGORITHM_DIRECT:
      return from_root(e, e->bytes / e->at.size) + hand_parts(e, e->bytes / e->at.size);
    default:
      return hierarchical_broadcast(e);
  }
}

static double reduce_scatter(const estimate *e, rdt_algorithm algorithm) {
  const double part = e->bytes / e->at.size;
  if (algorithm == RDT_ALGORITHM_FLAT) return reduce_parts(e, part);
  if (algorithm == RDT_ALGORITHM_RING) return (e->at.size - 1.0) * ring_step(e, part, true);
  return NEVER;
}

static double all_gather(const estimate *e, rdt_algorithm algorithm) {
  const double others = e->at.size - 1.0;
  if (algorithm == RDT_ALGORITHM_FLAT) return hand_parts(e, e->bytes);
  if (algorithm == RDT_ALGORITHM_RING) return others * ring_step(e, e->bytes, false);
  if (algorithm == RDT_ALGORITHM_HALVING)
    return (rounds_up(e->at.size) - 1.0) * pair_step(e, e->worst, 0, false) +
           pair_step(e, e->worst, others * e->bytes, false);
  return NEVER;
}

static double all_to_all(const estimate *e, rdt_algorithm algorithm) {
  const double part = e->bytes / e->at.size;
  if (algorithm == RDT_ALGORITHM_FLAT) return hand_parts(e, part);
  if (algorithm == RDT_ALGORITHM_RING)
    return (e->at.size - 1.0) * pair_step(e, e->worst, part, false);
  return NEVER;
}

static double reduce_to_root(const estimate *e, rdt_algorithm algorithm) {
  const double part = e->bytes / e->at.size;
  if (algorithm == RDT_ALGORITHM_FLAT)
    return greater(from_root(e, e->bytes),
                   latency_to_all(e) + reductions(e, e->at.size - 1.0, e->bytes));
  if (algorithm == RDT_ALGORITHM_DIRECT) return reduce_parts(e, part) + from_root(e, part);
  return NEVER;
}

/* Returns true if this algorithm is another one under a different name, which TREES is without trees. */
static bool redundant(const layout *at, rdt_algorithm algorithm) {
  if (algorithm == RDT_ALGORITHM_TREES) return true;
  if (algorithm == RDT_ALGORITHM_HIERARCHICAL)
    return at->hosts == 1 || at->hosts == at->size; /* DIRECT */
  return at->size <= 2 && algorithm != RDT_ALGORITHM_FLAT && algorithm != RDT_ALGORITHM_DIRECT;
}

static double predict(const rdt_group_costs *costs, rdt_collective_kind kind,
                      rdt_algorithm algorithm, uint64_t bytes, layout at) {
  const rdt_group_pair worst = at.hosts > 1 ? RDT_PAIR_REMOTE : RDT_PAIR_LOCAL;
  const estimate e = {costs, at, (double)bytes, worst};
  if (algorithm <= RDT_ALGORITHM_AUTO || algorithm >= RDT_ALGORITHM_COUNT ||
      redundant(&at, algorithm))
    return NEVER;
  switch (kind) {
    case RDT_ALL_REDUCE:
      return all_reduce(&e, algorithm);
    case RDT_REDUCE_SCATTER:
      return reduce_scatter(&e, algorithm);
    case RDT_ALL_GATHER:
      return all_gather(&e, algorithm);
    case RDT_BROADCAST:
      return broadcast(&e, algorithm);
    case RDT_ALL_TO_ALL:
      return all_to_all(&e, algorithm);
    case RDT_REDUCE:
      return reduce_to_root(&e, algorithm);
    default: /* kinds with one algorithm */
      return algorithm == RDT_ALGORITHM_FLAT ? latency_to_all(&e) : NEVER;
  }
}

double rdt_group_costs_predict(const rdt_group_costs *costs, rdt_collective_kind kind,
                               rdt_algorithm algorithm, uint64_t bytes, uint32_t size,
                               const uint32_t *hosts) {
  return predict(costs, kind, algorithm, bytes, lay_out(size, hosts));
}

rdt_algorithm rdt_group_costs_choose(const rdt_group_costs *costs, rdt_collective_kind kind,
                                     uint64_t bytes, uint32_t size, const uint32_t *hosts) {
  /* If two are equal, except for rounding, the simpler one wins. */
  static const rdt_algorithm simplest_first[] = {RDT_ALGORITHM_FLAT, RDT_ALGORITHM_DIRECT,
                                                 RDT_ALGORITHM_HALVING, RDT_ALGORITHM_RING,
                                                 RDT_ALGORITHM_HIERARCHICAL};
  const layout at = lay_out(size, hosts);
  rdt_algorithm best = RDT_ALGORITHM_FLAT;
  double least = NEVER;
  for (size_t i = 0; i < sizeof simplest_first / sizeof *simplest_first; i++) {
    const double cost = predict(costs, kind, simplest_first[i], bytes, at);
    if (cost >= least * (1 - ROUNDING)) continue;
    least = cost;
    best = simplest_first[i];
  }
  return best;
}
