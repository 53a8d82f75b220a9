// A client of one lane, in the lane's own words: libhoist's part, for tests of
// servers of lanes. CPUs wait by futex, as on the emulated device.
#ifndef HOIST_TESTS_SUPPORT_LANE_CLIENT_H_
#define HOIST_TESTS_SUPPORT_LANE_CLIENT_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/stream/streamer.h"
#include "hoist/shared/lane_layout.h"
#include "hoist/shared/mapping.h"

namespace hoistd::testing {

// Threads:  one at a time.
// Bounds:   a wait ends after kPatience seconds with DeadlineExceeded.
class LaneClient {
 public:
  static constexpr time_t kPatience = 20;

  LaneClient(LaneShare share, std::vector<uint32_t> order)
      : order_(std::move(order)), wake_(std::move(share.wake)) {
    const off_t bytes = lseek(share.memory.get(), 0, SEEK_END);
    mapping_ =
        hoist::Mapping::OfFd(share.memory.get(), static_cast<size_t>(bytes),
                             hoist::Mapping::Access::kReadWrite)
            .value();
  }

  hoist::lane::Header& header() {
    return *reinterpret_cast<hoist::lane::Header*>(mapping_.data());
  }
  hoist::lane::GroupWords& group(uint32_t index) {
    return reinterpret_cast<hoist::lane::GroupWords*>(
        mapping_.data() + hoist::lane::GroupsOffset())[index];
  }
  std::span<std::byte> memory() { return mapping_.span(); }
  uint64_t next() const { return next_; }
  uint32_t GroupAt(uint64_t position) const {
    return order_[position % order_.size()];
  }
  // The next position with that place in the order.
  uint64_t NextOf(uint64_t place) const {
    return next_ +
           (place + order_.size() - next_ % order_.size()) % order_.size();
  }

  // The counted form. Skips the positions before it.
  absl::Status Stage(uint64_t position) {
    Announce(position);
    return Await(group(GroupAt(position)).ready, hoist::lane::WordOf(position));
  }
  // The same without the wait.
  void Announce(uint64_t position) {
    if (position > next_) {
      Ask({.kind = static_cast<uint32_t>(hoist::lane::RequestKind::kSkip),
           .reserved = 0,
           .from = next_,
           .to = position});
    }
    next_ = position + 1;
    header().cursor.store(static_cast<uint32_t>(next_));
    WakeStreamer();
  }
  void Done(uint64_t position) {
    group(GroupAt(position)).done.store(hoist::lane::WordOf(position));
    WakeStreamer();
  }

  // The captured form, as a graph's nodes would do it.
  void Capture() {
    Ask({.kind = static_cast<uint32_t>(hoist::lane::RequestKind::kCapture),
         .reserved = 0,
         .from = next_,
         .to = 0});
  }
  absl::Status StagePlace(uint32_t place) {
    header().want.store(place + 1);
    WakeStreamer();
    hoist::lane::GroupWords& words = group(order_[place]);
    const absl::Status status = Await(words.flag, hoist::lane::kFlagReady);
    words.flag.store(hoist::lane::kFlagTaken);
    return status;
  }
  void DonePlace(uint32_t place) {
    hoist::lane::GroupWords& words = group(order_[place]);
    words.flag.store(hoist::lane::kFlagEmpty);
    words.done_flag.store(1);
    header().want.store(0);
    WakeStreamer();
  }

  void Ask(const hoist::lane::Request& request) {
    const uint32_t made = header().head.load();
    while (made - header().tail.load() >= hoist::lane::kRequests) {
      if (!Fault().ok()) return;
      sched_yield();
    }
    reinterpret_cast<hoist::lane::Request*>(
        mapping_.data() + hoist::lane::RequestsOffset(
                              header().groups))[made % hoist::lane::kRequests] =
        request;
    header().head.store(made + 1);
    WakeStreamer();
  }
  void WakeStreamer() {
    if (header().sleeping.load() == 1) Wake();
  }
  void Wake() {
    const uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) != sizeof(one)) return;
  }
  absl::Status Fault() {
    const uint32_t code = header().fault_code.load();
    if (code == 0) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code),
                        header().fault_text);
  }

 private:
  absl::Status Await(hoist::lane::Word& word, uint32_t target) {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    const time_t until = now.tv_sec + kPatience;
    while (true) {
      const uint32_t seen = word.load();
      if (hoist::lane::Reached(seen, target)) return Fault();
      clock_gettime(CLOCK_MONOTONIC, &now);
      if (now.tv_sec >= until) {
        return absl::DeadlineExceededError(
            absl::StrCat("nobody wrote the word: ", seen, " for ", target));
      }
      const timespec limit = {kPatience, 0};
      syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
    }
  }

  const std::vector<uint32_t> order_;
  hoist::UniqueFd wake_;
  hoist::Mapping mapping_;
  uint64_t next_ = 0;
};

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_LANE_CLIENT_H_
