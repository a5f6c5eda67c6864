// SPDX-License-Identifier: Apache-2.0
//
// The table of allocation sites: marks stick to their site, a full table starts anew, and threads may
// use it together.
#include <thread>
#include <vector>

#include "memory/sites.h"
#include "unit.h"

using rdmatensor::Sites;

namespace {

uint64_t Site(uint64_t number) { return Sites::FromHash(number * 0x9E3779B97F4A7C15ull); }

void MarksStickToTheirSite() {
  Sites sites(1024);
  for (uint64_t i = 0; i < 500; ++i) EXPECT(!sites.See(Site(i)));
  EXPECT(sites.seen() == 500 && sites.marked() == 0);
  for (uint64_t i = 0; i < 500; i += 2) EXPECT(sites.Mark(Site(i)));
  for (uint64_t i = 0; i < 500; ++i) EXPECT(sites.See(Site(i)) == (i % 2 == 0));
  EXPECT(!sites.Mark(Site(0)));
  EXPECT(sites.seen() == 500 && sites.marked() == 250);
  EXPECT(sites.Mark(Site(1000)));
  EXPECT(sites.See(Site(1000)) && sites.seen() == 501);
}

// Hashes that mean something else in the table.
void EveryHashIsASite() {
  Sites sites(16);
  for (uint64_t hash : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    EXPECT(Sites::FromHash(hash) != 0);
    EXPECT(!sites.See(Sites::FromHash(hash)) || hash == 1);
    (void)sites.Mark(Sites::FromHash(hash));
    EXPECT(sites.See(Sites::FromHash(hash)));
  }
}

void AFullTableStartsAnew() {
  Sites sites(64);
  for (uint64_t i = 0; i < 48; ++i) (void)sites.Mark(Site(i));
  EXPECT(sites.seen() == 48 && sites.marked() == 48);
  EXPECT(!sites.See(Site(48)));
  EXPECT(sites.seen() == 0 && sites.marked() == 0);
  EXPECT(!sites.See(Site(7)));
  EXPECT(sites.Mark(Site(7)) && sites.See(Site(7)));
  for (uint64_t i = 0; i < 100000; ++i) (void)sites.See(Site(i));
  EXPECT(sites.seen() <= 48);
}

void ThreadsShareIt() {
  Sites sites(size_t{1} << 14);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> marked{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 8000; ++i) {
        (void)sites.See(Site(i));
        if (i % 3 == 0 && sites.Mark(Site(i))) marked.fetch_add(1);
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  EXPECT(sites.seen() == 8000);
  EXPECT(marked.load() == 2667 && sites.marked() == 2667);
  for (uint64_t i = 0; i < 8000; ++i) EXPECT(sites.See(Site(i)) == (i % 3 == 0));
}

void ThreadsStartItAnew() {
  Sites sites(64);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&sites, t] {
      for (uint64_t i = 0; i < 100000; ++i) {
        if (sites.See(Site(t * 1000003 + i % 100))) continue;
        (void)sites.Mark(Site(t * 1000003 + i % 100));
      }
    });
  }
  for (std::thread &thread : threads) thread.join();
  EXPECT(sites.seen() <= 64);
}

}  // namespace

int main() {
  MarksStickToTheirSite();
  EveryHashIsASite();
  AFullTableStartsAnew();
  ThreadsShareIt();
  ThreadsStartItAnew();
  return 0;
}
