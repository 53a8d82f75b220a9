#include "client/src/in_place/pass_boundary.h"

#include <algorithm>
#include <array>
#include <new>
#include <thread>
#include <utility>

#include "client/src/device/word_wait.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {
namespace {

using Kind = WordOp::Kind;
using std::chrono::steady_clock;

constexpr size_t kHostPage = 4096;  // What the driver registers at the least.
// Poll interval: a stream stays parked until it is seen.
constexpr std::chrono::microseconds kShortest{5}, kLongest{200};

}  // namespace

Result<std::unique_ptr<PassBoundary>> PassBoundary::Create(StreamOrder* order) {
  static_assert(sizeof(Words) <= kHostPage);
  Result<UniqueFd> fd = CreateMemfd("hoist-boundary", kHostPage);
  if (!fd.ok()) return fd.status();
  Result<Mapping> memory =
      Mapping::OfFd(fd->get(), kHostPage, Mapping::Access::kReadWrite);
  if (!memory.ok()) return memory.status();
  if (Status s = order->Register(memory->span()); !s.ok()) return s;
  return std::unique_ptr<PassBoundary>(
      new PassBoundary(std::move(memory).value(), order));
}

PassBoundary::PassBoundary(Mapping memory, StreamOrder* order)
    : memory_(std::move(memory)),
      words_(new (memory_.data()) Words()),
      order_(order) {}

PassBoundary::~PassBoundary() { order_->Unregister(memory_.span()); }

Status PassBoundary::Put(cuda::Stream stream) {
  const std::array<WordOp, 3> ops = {{{Kind::kWrite, &words_->at, 1},
                                      {Kind::kWait, &words_->pass, 1},
                                      {Kind::kWrite, &words_->at, 0}}};
  return order_->Put(stream, ops);
}

bool PassBoundary::Hold(std::chrono::milliseconds limit,
                        const std::atomic<bool>& cancelled) {
  const steady_clock::time_point end = steady_clock::now() + limit;
  auto nap = kShortest;
  bool forbids = false;
  while (!cancelled && steady_clock::now() < end) {
    if (!forbids) words_->pass.store(0);
    const bool empty = words_->at.load() == 0;
    if (forbids && !empty) return true;
    // A stream there at the first look may have been let through before.
    forbids = empty;
    if (!empty) Release();
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongest);
  }
  Release();
  return false;
}

void PassBoundary::Release() {
  words_->pass.store(1);
  WakeWord(words_->pass);
}

}  // namespace hoist
