#include "client/src/in_place_gate.h"

#include <array>
#include <new>
#include <thread>
#include <utility>

#include "client/src/word_wait.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {
namespace {

using Kind = WordOp::Kind;
using std::chrono::steady_clock;

constexpr size_t kPage = 4096;  // What the driver registers at the least.
constexpr auto kShortest = std::chrono::microseconds(10);
constexpr auto kLongest = std::chrono::microseconds(500);

}  // namespace

Result<std::unique_ptr<InPlaceGate>> InPlaceGate::Create(StreamOrder* order) {
  static_assert(sizeof(Words) <= kPage);
  Result<UniqueFd> fd = CreateMemfd("hoist-gate", kPage);
  if (!fd.ok()) return fd.status();
  Result<Mapping> memory =
      Mapping::OfFd(fd->get(), kPage, Mapping::Access::kReadWrite);
  if (!memory.ok()) return memory.status();
  if (Status s = order->Register(memory->span()); !s.ok()) return s;
  return std::unique_ptr<InPlaceGate>(
      new InPlaceGate(std::move(memory).value(), order));
}

InPlaceGate::InPlaceGate(Mapping memory, StreamOrder* order)
    : memory_(std::move(memory)),
      words_(new (memory_.data()) Words()),
      order_(order) {}

InPlaceGate::~InPlaceGate() { order_->Unregister(memory_.span()); }

Status InPlaceGate::Enter(cuda::Stream stream) {
  const std::array<WordOp, 2> ops = {
      {{Kind::kWrite, &words_->inside, 1}, {Kind::kWait, &words_->open, 1}}};
  return order_->Put(stream, ops);
}

Status InPlaceGate::Leave(cuda::Stream stream) {
  const std::array<WordOp, 2> ops = {
      {{Kind::kWrite, &words_->inside, 0}, {Kind::kWait, &words_->pass, 1}}};
  return order_->Put(stream, ops);
}

bool InPlaceGate::Close(std::chrono::milliseconds limit) {
  const steady_clock::time_point end = steady_clock::now() + limit;
  auto nap = kShortest;
  words_->pass.store(0);
  while (true) {
    if (words_->inside.load() == 0) {
      words_->open.store(0);
      // In one order with who enters: either it sees that, or is seen here.
      if (words_->inside.load() == 0) return true;
      words_->open.store(1);
      WakeWord(words_->open);
      nap = kShortest;
    }
    if (steady_clock::now() >= end) break;
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongest);
  }
  words_->pass.store(1);
  WakeWord(words_->pass);
  return false;
}

void InPlaceGate::Open() {
  words_->open.store(1);
  WakeWord(words_->open);
  words_->pass.store(1);
  WakeWord(words_->pass);
}

}  // namespace hoist
