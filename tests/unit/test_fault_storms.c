/* SPDX-License-Identifier: Apache-2.0
 *
 * Several kinds of faults at once, while threads post until the channel ends: no transfer is lost, and none
 * that succeeded has other bytes; nothing is added twice.
 */
#include "fault_pair.h"

typedef struct {
  pair *pair;
  int id;
  tally tally;
  uint8_t source[64], target[64];
  uint64_t old, added, posted; /* of the poster's own word: adding 1 succeeded, or was tried */
} poster;

#define POSTERS 3
#define WORDS 4096 /* the offset of their words */

/* Writes to a place of its own and reads it back, and counts in a word, until the channel ends. */
static void *post_until_down(void *argument) {
  poster *me = argument;
  uint64_t offset = (uint64_t)me->id * 64;
  for (unsigned turn = 0; turn < 20000; turn++) {
    memset(me->source, (int)turn, sizeof(me->source));
    rdt_op ops[] = {write_op(me->pair, me->source, 64, offset),
                    {.kind = RDT_OP_READ,
                     .local = me->target,
                     .size = 64,
                     .remote = me->pair->remote,
                     .remote_offset = offset},
                    {.kind = RDT_OP_FETCH_ADD,
                     .local = &me->old,
                     .size = sizeof(me->old),
                     .remote = me->pair->remote,
                     .remote_offset = WORDS + 8 * (uint64_t)me->id,
                     .operand = 1},
                    {.kind = RDT_OP_NOTIFY}};
    me->posted++;
    int before = atomic_load(&me->tally.done), failed = atomic_load(&me->tally.failed);
    rdt_status status = rdt_channel_post(me->pair->channel, ops, 4, count_done, &me->tally);
    if (status == RDT_ERR_CONNECTION_LOST) return NULL;
    EXPECT(status >= 0 || status == RDT_ERR_LIMIT);
    if (status == RDT_IN_PROGRESS) EXPECT(becomes(&me->tally.done, before + 1));
    bool well = status == RDT_OK || (status > 0 && atomic_load(&me->tally.failed) == failed);
    if (!well) continue;
    EXPECT(memcmp(me->source, me->target, 64) == 0);
    EXPECT(me->old >= me->added++ && me->old < me->posted);
  }
  return NULL;
}

static void test_storm(const char *wanted) {
  pair p;
  pthread_t threads[POSTERS];
  static poster posters[POSTERS];
  open_pair(&p, wanted);
  rdt_config_set("DEADLINE_MS", "400");
  for (int i = 0; i < POSTERS; i++) {
    memset(&posters[i], 0, sizeof(posters[i]));
    posters[i].pair = &p;
    posters[i].id = i;
    EXPECT(pthread_create(&threads[i], NULL, post_until_down, &posters[i]) == 0);
  }
  for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
  EXPECT(becomes(&p.a.down, 1) && becomes(&p.b.down, 1));
  /* None was executed twice, and none that succeeded was lost. */
  const uint64_t *words = (const uint64_t *)(p.memory + WORDS);
  for (int i = 0; i < POSTERS; i++)
    EXPECT(words[i] >= posters[i].added && words[i] <= posters[i].posted);
  close_pair(&p);
  rdt_config_set("DEADLINE_MS", "10000");
}

int main(void) {
  rdt_config_set("LOG_LEVEL", "error");
  test_storm("seed=1,post=0.02,delay=0.05:1ms,credit=0.02:1ms,stall=0.01:1ms,break=0.0005");
  test_storm("seed=2,delay=0.2:1ms,drop=0.002");
  test_storm("seed=3,credit=0.05:1ms,fail=0.002");
  return 0;
}
