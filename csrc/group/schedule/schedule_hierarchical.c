/* SPDX-License-Identifier: Apache-2.0
 *
 * HIERARCHICAL: the data is cut into as many parts as the smallest host has members. On each host,
 * one member leads each part: it collects the part from the others there, exchanges it with its
 * leaders on the other hosts, and distributes it. So the data crosses between hosts once, over all
 * their links.
 */
#include "group/schedule/schedule_algorithms.h"

static uint32_t rank_at(const rdt_schedule_builder *b, uint32_t host, uint32_t local) {
  return b->topology.order[b->topology.starts[host] + local];
}

static uint32_t members_here(const rdt_schedule_builder *b) {
  const rdt_schedule_topology *t = &b->topology;
  return t->starts[t->host + 1] - t->starts[t->host];
}

static bool leads(const rdt_schedule_builder *b) { return b->topology.local < b->topology.least; }

/* The part that the member leads. The first part is the longest. */
static rdt_schedule_range led(const rdt_schedule_builder *b, rdt_schedule_range range,
                              uint32_t local) {
  return rdt_schedule_part(range, b->topology.least, local);
}

/* The part of a led part that the leader on `host` sums up. */
static rdt_schedule_range share(const rdt_schedule_builder *b, rdt_schedule_range range,
                                uint32_t host) {
  return rdt_schedule_part(led(b, range, b->topology.local), b->topology.hosts, host);
}

/* The other members of this host give each leader its part of their input. */
static void collect(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_topology *t = &b->topology;
  const rdt_schedule_range mine = led(b, range, t->local % t->least);
  const rdt_group_place in = rdt_schedule_input(mine.at), sum = rdt_schedule_output(mine.at);
  RDT_SCHEDULE_PIECES(b, led(b, range, 0).count) {
    for (uint32_t i = 0; i < t->least; i++) {
      const rdt_schedule_range part = led(b, range, i);
      if (i != t->local)
        rdt_schedule_send(b, rank_at(b, t->host, i), rdt_schedule_input(part.at), part.count);
    }
  }
  RDT_SCHEDULE_PIECES(b, led(b, range, 0).count) {
    const uint32_t here = members_here(b), last = here - 1 - (t->local == here - 1);
    bool first = true;
    for (uint32_t i = 0; leads(b) && i < here; i++) {
      if (i == t->local) continue;
      rdt_schedule_reduce(b, rank_at(b, t->host, i), first ? in : sum, sum, mine.count,
                          t->hosts == 1 && i == last);
      first = false;
    }
  }
}

/* Leaders of the same part each sum up a share of it. */
static void exchange(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_topology *t = &b->topology;
  const bool input = members_here(b) == 1;
  const rdt_schedule_range mine = share(b, range, t->host);
  const rdt_group_place sum = rdt_schedule_output(mine.at);
  RDT_SCHEDULE_PIECES(b, share(b, range, 0).count) {
    for (uint32_t h = 0; h < t->hosts; h++) {
      const rdt_schedule_range part = share(b, range, h);
      const rdt_group_place from =
          input ? rdt_schedule_input(part.at) : rdt_schedule_output(part.at);
      if (h != t->host) rdt_schedule_send(b, rank_at(b, h, t->local), from, part.count);
    }
  }
  RDT_SCHEDULE_PIECES(b, share(b, range, 0).count) {
    const uint32_t last = t->hosts - 1 - (t->host == t->hosts - 1);
    bool first = true;
    for (uint32_t h = 0; h < t->hosts; h++) {
      if (h == t->host) continue;
      rdt_schedule_reduce(b, rank_at(b, h, t->local),
                          first && input ? rdt_schedule_input(mine.at) : sum, sum, mine.count,
                          h == last);
      first = false;
    }
  }
}

static void hand_shares(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_topology *t = &b->topology;
  const rdt_schedule_range mine = share(b, range, t->host);
  RDT_SCHEDULE_PIECES(b, share(b, range, 0).count) {
    for (uint32_t h = 0; h < t->hosts; h++) {
      if (h != t->host)
        rdt_schedule_send(b, rank_at(b, h, t->local), rdt_schedule_output(mine.at), mine.count);
    }
  }
  RDT_SCHEDULE_PIECES(b, share(b, range, 0).count) {
    for (uint32_t h = 0; h < t->hosts; h++) {
      const rdt_schedule_range part = share(b, range, h);
      if (h != t->host)
        rdt_schedule_receive(b, rank_at(b, h, t->local), rdt_schedule_output(part.at), part.count);
    }
  }
}

/* Leaders give their parts to the members of their host, except `has_all`. */
static void hand_out(rdt_schedule_builder *b, rdt_schedule_range range, uint32_t has_all) {
  const rdt_schedule_topology *t = &b->topology;
  const uint32_t here = members_here(b), self = b->request->rank;
  const rdt_schedule_range mine = led(b, range, t->local % t->least);
  const rdt_group_place from = rdt_schedule_output(mine.at);
  RDT_SCHEDULE_PIECES(b, led(b, range, 0).count) {
    for (uint32_t i = 0; leads(b) && i < here; i++) {
      if (i != t->local && rank_at(b, t->host, i) != has_all)
        rdt_schedule_send(b, rank_at(b, t->host, i), from, mine.count);
    }
  }
  if (self == has_all) return;
  RDT_SCHEDULE_PIECES(b, led(b, range, 0).count) {
    for (uint32_t i = 0; i < t->least; i++) {
      const rdt_schedule_range part = led(b, range, i);
      if (i != t->local)
        rdt_schedule_receive(b, rank_at(b, t->host, i), rdt_schedule_output(part.at), part.count);
    }
  }
}

void rdt_schedule_hierarchical_all_reduce(rdt_schedule_builder *b, rdt_schedule_range range) {
  collect(b, range);
  b->round = 1;
  if (leads(b)) exchange(b, range);
  b->round = 2;
  if (leads(b)) hand_shares(b, range);
  b->round = 3;
  hand_out(b, range, b->request->size);
}

/* The root gives the leaders of its host their parts. */
static void scatter(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_topology *t = &b->topology;
  const rdt_schedule_request *q = b->request;
  RDT_SCHEDULE_PIECES(b, led(b, range, 0).count) {
    for (uint32_t i = 0; q->rank == q->root && i < t->least; i++) {
      const rdt_schedule_range part = led(b, range, i);
      if (i != t->local)
        rdt_schedule_send(b, rank_at(b, t->host, i), rdt_schedule_input(part.at), part.count);
    }
  }
}

void rdt_schedule_hierarchical_broadcast(rdt_schedule_builder *b, rdt_schedule_range range) {
  const rdt_schedule_request *q = b->request;
  const rdt_schedule_topology *t = &b->topology;
  const bool root = q->rank == q->root;
  const uint32_t source = t->origin_host;
  const rdt_schedule_range mine = led(b, range, t->local % t->least);
  const rdt_group_place out = rdt_schedule_output(mine.at);
  const uint64_t longest = led(b, range, 0).count;
  scatter(b, range);
  if (root) rdt_schedule_copy_input(b, range);
  RDT_SCHEDULE_PIECES(b, longest) {
    if (!root && leads(b) && t->host == source) rdt_schedule_receive(b, q->root, out, mine.count);
  }
  b->round = 1;
  RDT_SCHEDULE_PIECES(b, longest) {
    for (uint32_t h = 0; leads(b) && t->host == source && h < t->hosts; h++) {
      if (h != source)
        rdt_schedule_send(b, rank_at(b, h, t->local), root ? rdt_schedule_input(mine.at) : out,
                          mine.count);
    }
  }
  RDT_SCHEDULE_PIECES(b, longest) {
    if (leads(b) && t->host != source)
      rdt_schedule_receive(b, rank_at(b, source, t->local), out, mine.count);
  }
  b->round = 2;
  hand_out(b, range, q->root);
}
