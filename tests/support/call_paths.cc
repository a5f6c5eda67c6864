// SPDX-License-Identifier: Apache-2.0
//
// What the plugin adds to the notifications of a call, for callgrind: `call_paths COUNT PATH...` writes a message, puts
// it together and reads it, COUNT times for each path, and calls next_path after each. `call` is a request with a fed
// tensor of 1 KB, `answer` what comes back, `pieces` a request of 64 KB that needs sixteen notifications.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "channel/call_message.h"

namespace {

using rdmatensor::AnswerMessage;
using rdmatensor::Assembly;
using rdmatensor::CallMessage;
using rdmatensor::EncodedSize;
using rdmatensor::kPieceHeaderSize;
using rdmatensor::TensorMessage;

constexpr size_t kRoom = 4096;

std::vector<TensorMessage> Tensors(const std::string &payload) {
  TensorMessage tensor;
  tensor.dtype = 1;
  tensor.key = "fed:0";
  tensor.dims = {256};
  tensor.bytes = payload.size();
  tensor.flags = TensorMessage::kInline;
  tensor.payload = payload.data();
  return {tensor};
}

// Writes what channel/pieces.h writes, and reads it as calls/callee.cc does.
template <typename Message>
bool Pass(const Message &message, std::vector<char> *wire) {
  static uint64_t number = 0;
  const size_t size = EncodedSize(message);
  wire->resize(kPieceHeaderSize + size);
  Encode(message, wire->data() + kPieceHeaderSize);
  rdmatensor::EncodeHeader(wire->data(), size);
  Assembly assembly;
  ++number;
  for (size_t at = 0; at < wire->size(); at += kRoom) {
    const char *const piece = wire->data() + at;
    const size_t part = std::min(kRoom, wire->size() - at);
    if (!(at == 0 ? assembly.Begin(number, piece, part) : assembly.Add(number, piece, part))) {
      return false;
    }
  }
  const std::string content = assembly.Take();
  Message read;
  return Parse(content.data(), content.size(), &read) && read.tensors.size() == 1;
}

}  // namespace

extern "C" __attribute__((noinline)) void run_path(const char *path, const CallMessage &call,
                                                   const AnswerMessage &answer,
                                                   std::vector<char> *wire) {
  if (!(std::strcmp(path, "answer") == 0 ? Pass(answer, wire) : Pass(call, wire))) std::exit(1);
}

extern "C" __attribute__((noinline)) void next_path() { __asm__ volatile(""); }

int main(int count, char **words) {
  const std::string payload(1024, 'x'), text(300, 'y'), long_text(65536, 'z');
  std::vector<char> wire;
  if (count < 3) return 2;
  for (int i = 2; i < count; ++i) {
    CallMessage call;
    AnswerMessage answer;
    call.method = 1;
    call.tensors = answer.tensors = Tensors(payload);
    call.bytes = std::strcmp(words[i], "pieces") == 0 ? long_text : text;
    answer.bytes = text;
    if (!Pass(call, &wire)) return 1;  // the first is another: it makes tables, allocates
    for (int times = std::atoi(words[1]); times > 0; --times) {
      run_path(words[i], call, answer, &wire);
    }
    next_path();
  }
  return 0;
}
