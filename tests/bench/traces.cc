#include "tests/bench/traces.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/bench/basics.h"

namespace hoist::bench {
namespace {

Trace InOrder(const std::string& name, std::vector<uint64_t> bytes) {
  Trace trace{name, std::move(bytes), {}};
  trace.order.resize(trace.bytes.size());
  std::iota(trace.order.begin(), trace.order.end(), 0u);
  return trace;
}

std::vector<uint64_t> Even(size_t count, uint64_t mib) {
  return std::vector<uint64_t>(count, mib * kMiB);
}

}  // namespace

std::vector<Trace> Traces(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Trace> traces;
  traces.push_back(InOrder("even 12 x 64 MiB", Even(12, 64)));
  traces.push_back(InOrder("24 x 629 MiB", Even(24, 629)));
  traces.push_back(InOrder("400 x 4 MiB", Even(400, 4)));

  std::vector<uint64_t> wild;
  for (int i = 0; i < 14; ++i) wild.push_back((1 + random() % 512) * kMiB);
  traces.push_back(InOrder("wild 14, 1 to 512 MiB", wild));
  wild.clear();
  for (int i = 0; i < 100; ++i) {
    wild.push_back((uint64_t{1} << random() % 10) * kMiB);
  }
  traces.push_back(InOrder("wild 100, powers of 2 to 512 MiB", wild));

  // An encoder's layers, then a decoder's three times over.
  Trace repeats{"16 x 48 MiB, the last 8 three times", Even(16, 48), {}};
  for (uint32_t g = 0; g < 8; ++g) repeats.order.push_back(g);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t g = 8; g < 16; ++g) repeats.order.push_back(g);
  }
  traces.push_back(repeats);

  // A diffusion transformer: text and time embedding, 48 blocks, output.
  std::vector<uint64_t> dit = Even(48, 420);
  dit.insert(dit.begin(), 96 * kMiB);
  dit.push_back(24 * kMiB);
  traces.push_back(InOrder("DiT: 48 x 420 MiB and 2 small", dit));

  // Llama 70B in bf16: 80 blocks of 855,654,400 weights, embedding and head of
  // 128,256 x 8,192.
  std::vector<uint64_t> llama(80, uint64_t{2} * 855'654'400);
  llama.insert(llama.begin(), uint64_t{2} * 128'256 * 8'192);
  llama.push_back(uint64_t{2} * 128'256 * 8'192);
  traces.push_back(InOrder("Llama 70B: 80 blocks, embedding, head", llama));
  return traces;
}

}  // namespace hoist::bench
