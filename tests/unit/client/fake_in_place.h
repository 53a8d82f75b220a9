// A FakeDaemon with in-place memory, whose script controls stages of separate
// slabs.
#ifndef HOIST_TESTS_UNIT_CLIENT_FAKE_IN_PLACE_H_
#define HOIST_TESTS_UNIT_CLIENT_FAKE_IN_PLACE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hoist/shared/unique_fd.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test {

// Its model "moe" has the pieces 0 to 99 of 2 MiB, each of one tensor whose
// bytes are PieceByte. After them come "tail", of 4 KiB more, "crumb", of 4
// KiB, and two of 2 MiB that are not full: "short" ends in a gap, "holed" has
// one between its tensors.
//
// Threads: thread-safe.
class FakeInPlace {
 public:
  static constexpr uint64_t kPiece = uint64_t{2} << 20;
  static constexpr uint32_t kPieces = 100;
  static constexpr uint32_t kTail = 100, kCrumb = 101;
  static constexpr uint32_t kShort = 102, kHoled = 103, kGroups = 104;
  static constexpr uint32_t kInPlace = 1;  // The device that is read in place.

  FakeInPlace() : daemon_([this](auto&... args) { return Do(args...); }) {}
  FakeInPlace(const FakeInPlace&) = delete;
  FakeInPlace& operator=(const FakeInPlace&) = delete;

  const std::string& path() const { return daemon_.path(); }
  static uint8_t PieceByte(uint32_t group) {
    return static_cast<uint8_t>(3 * group + 1);
  }

  // For later sessions. `why`: there is no in-place memory.
  void SetNoInPlace(std::string why);
  // Refuses stages on a device beyond so many copies.
  void SetRoom(uint32_t device, size_t copies);
  // While set, stages on that device are answered only by LetCome.
  void Hold(uint32_t device, bool holds);
  // Answers the oldest held stage, once there is one.
  void LetOneCome();
  void LetAllCome();
  // Waits until so many stages on the device have arrived, held ones included.
  void AwaitStages(uint32_t device, size_t count);
  // A hoistd dies, and this one takes over: it does not know held requests.
  void Resume();
  // The heat of the model's groups by other workers, from now on.
  void SetHeat(pb::Heat heat);
  // From now on, heat reports are not answered.
  void SetHeatSilent();
  // Waits until so many heat reports have arrived.
  void AwaitHeats(size_t count);
  // Sends a slab of an odd size once, instead of the right one.
  void SendAnOddSlab();
  void HangUp();

  size_t stages(uint32_t device);
  // The n-th request to stage on the device.
  pb::StageRequest stage(uint32_t device, size_t n);
  // Groups leased on one device, once per lease.
  std::multiset<uint32_t> leased(uint32_t device);
  // The maximum leased at a time.
  size_t most_leased(uint32_t device);
  // Waits until exactly these are leased.
  void AwaitLeased(uint32_t device, const std::multiset<uint32_t>& groups);
  size_t resumed() { return Locked(resumed_); }

 private:
  struct Slab {
    uint64_t id = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    hoist::UniqueFd fd;
    std::set<Peer*> sent;
  };
  struct Held {
    Peer* peer = nullptr;
    pb::ClientMessage message;
  };

  template <typename T>
  T Locked(const T& value) {
    const std::lock_guard<std::mutex> lock(mu_);
    return value;
  }
  bool Do(Peer& peer, const pb::ClientMessage& message,
          const std::vector<int>& fds);
  void Stage(Peer& peer, const pb::ClientMessage& message);
  std::multiset<uint32_t> LeasedNow(uint32_t device) const;
  Slab& SlabOf(uint32_t device, uint32_t group, uint64_t bytes);
  void Open(Peer& peer, const pb::ClientMessage& message);

  std::mutex mu_;
  std::condition_variable changed_;
  std::string no_in_place_;
  bool has_in_place_ = true;
  std::map<uint32_t, size_t> room_;
  std::map<uint32_t, size_t> most_;
  std::set<uint32_t> holding_;
  std::deque<Held> held_;
  bool odd_slab_ = false;
  pb::Heat heat_;
  bool heat_silent_ = false;
  size_t heats_ = 0;
  std::map<uint32_t, std::vector<pb::StageRequest>> stages_;
  std::map<std::pair<uint32_t, uint32_t>, Slab> slabs_;
  std::map<uint64_t, std::pair<uint32_t, uint32_t>> leases_;
  uint64_t last_lease_ = 0;
  uint64_t last_slab_ = 0;
  size_t resumed_ = 0;
  Peer* last_peer_ = nullptr;
  FakeDaemon daemon_;
};

}  // namespace hoist_test

#endif  // HOIST_TESTS_UNIT_CLIENT_FAKE_IN_PLACE_H_
