// hoistd's side of a lane, controlled by a test. Names none of shared/'s types;
// see fake_daemon.h.
#ifndef HOIST_TESTS_UNIT_CLIENT_FAKE_LANE_H_
#define HOIST_TESTS_UNIT_CLIENT_FAKE_LANE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "hoist/shared/lane_layout.h"

namespace hoist_test {

// Owns its memory, mapped, and its eventfd.
class FakeLane {
 public:
  FakeLane(uint32_t groups, uint32_t order_length, bool sealed = true);
  FakeLane(const FakeLane&) = delete;
  FakeLane& operator=(const FakeLane&) = delete;
  ~FakeLane();

  hoist::lane::Header& header() const;
  hoist::lane::GroupWords& group(uint32_t index) const;
  const hoist::lane::Request& request(uint32_t number) const;
  int memory_fd() const { return memory_; }
  int wake_fd() const { return wake_; }

  // Marks the group ready for the position.
  void Ready(uint32_t group, uint64_t position);
  // Marks all groups ready, for all positions that a test can reach.
  void ReadyForAll();
  // Waits until the client's cursor has that value.
  void AwaitCursor(uint32_t cursor) const;
  void Fault(uint32_t code, const std::string& text);
  // Wake-ups since the last call.
  uint64_t TakeWakeUps() const;

 private:
  const uint32_t groups_;
  int memory_ = -1;
  int wake_ = -1;
  std::byte* data_ = nullptr;
};

}  // namespace hoist_test

#endif  // HOIST_TESTS_UNIT_CLIENT_FAKE_LANE_H_
