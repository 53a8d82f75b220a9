#include "tests/unit/client/fake_lane.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <thread>

namespace hoist_test {

namespace lane = hoist::lane;

FakeLane::FakeLane(uint32_t groups, uint32_t order_length, bool sealed)
    : groups_(groups) {
  const size_t bytes = lane::LaneBytes(groups);
  memory_ = memfd_create("fake-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (ftruncate(memory_, static_cast<off_t>(bytes)) != 0) {
    std::perror("ftruncate");
  }
  if (sealed && fcntl(memory_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    std::perror("seal");
  }
  data_ = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_, 0));
  header().magic = lane::kMagic;
  header().version = lane::kVersion;
  header().bytes = bytes;
  header().groups = groups;
  header().order_length = order_length;
}

FakeLane::~FakeLane() {
  munmap(data_, lane::LaneBytes(groups_));
  close(memory_);
  close(wake_);
}

lane::Header& FakeLane::header() const {
  return *reinterpret_cast<lane::Header*>(data_);
}

lane::GroupWords& FakeLane::group(uint32_t index) const {
  return reinterpret_cast<lane::GroupWords*>(data_ +
                                             lane::GroupsOffset())[index];
}

const lane::Request& FakeLane::request(uint32_t number) const {
  return reinterpret_cast<const lane::Request*>(
      data_ + lane::RequestsOffset(groups_))[number % lane::kRequests];
}

void FakeLane::Ready(uint32_t index, uint64_t position) {
  lane::Word& word = group(index).ready;
  word.store(lane::WordOf(position));
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void FakeLane::ReadyForAll() {
  for (uint32_t g = 0; g < groups_; ++g) Ready(g, 1'000'000);
}

void FakeLane::AwaitCursor(uint32_t cursor) const {
  while (header().cursor.load() != cursor) std::this_thread::yield();
}

void FakeLane::Fault(uint32_t code, const std::string& text) {
  std::strncpy(header().fault_text, text.c_str(), lane::kMaxFaultText - 1);
  header().fault_code.store(code);
  const uint32_t cursor = header().cursor.load();
  for (uint32_t g = 0; g < groups_; ++g) Ready(g, uint64_t{cursor} - 1);
}

uint64_t FakeLane::TakeWakeUps() const {
  uint64_t count = 0;
  return read(wake_, &count, sizeof(count)) == sizeof(count) ? count : 0;
}

}  // namespace hoist_test
