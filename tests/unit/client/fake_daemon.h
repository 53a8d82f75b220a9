// A scripted daemon of the session protocol: well-behaved by default, as
// hostile as the test needs. Its header names none of shared/'s types, since
// hoist.h has its own of those names.
#ifndef HOIST_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
#define HOIST_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "hoist/v1/session.pb.h"
#include "tests/unit/client/fake_lane.h"

namespace hoist_test {

namespace pb = hoist::v1;

// One connection, from the daemon's side.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}  // Owned.
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  void Send(const pb::DaemonMessage& message, std::span<const int> fds = {});
  // Raw bytes, without framing.
  void SendRaw(const std::string& bytes);
  // A well-formed frame around any body.
  void SendBody(const std::string& body, std::span<const int> fds = {});
  void HangUp();
  int socket() const { return socket_; }

  bool slab_sent = false;

 private:
  const int socket_;
};

// The answer to plans: resident groups, and the ring of the others.
struct FakePlan {
  std::vector<uint32_t> residents = {};
  // Of the ring; the i-th streamed group lies in slot i % slots.
  uint32_t slots = 2;
};

// Its model "m" has the groups "a" (tensors "x": F32 [2, 3] and "e": F32 [0])
// and "b" ("y": BF16 [4]); its model "deep" the groups "l0" to "l5" ("w": F32
// [1024]) and "none", which is empty. The bytes of the image of group g are
// Byte(g).
class FakeDaemon {
 public:
  // True: the script has handled the message.
  using Script = std::function<bool(Peer&, const pb::ClientMessage&,
                                    const std::vector<int>&)>;

  explicit FakeDaemon(Script script = nullptr);
  ~FakeDaemon();

  const std::string& path() const { return path_; }
  std::vector<uint64_t> released();
  // The last published image's bytes, and its group.
  std::pair<std::string, pb::Group> published();

  static uint8_t Byte(uint32_t group) {
    return static_cast<uint8_t>(0x11 * (group + 1));
  }
  static pb::Model ModelMessage();
  static pb::Model DeepModelMessage();
  pb::DaemonMessage OpenReply(uint64_t request_id) const;
  // A valid answer to a stage of `group`, and its attachments.
  pb::DaemonMessage LeaseReply(uint64_t request_id, uint32_t group,
                               bool with_slab) const;
  int slab_fd() const { return slab_; }

  // For later plans.
  void PlanAs(FakePlan plan);
  // A valid answer to a plan; if it has a lane, it is the next one.
  pb::DaemonMessage PlanReply(uint64_t request_id,
                              const pb::SetPlanRequest& request);
  // Attachments of PlanReply's message: slab, lane, eventfd.
  std::vector<int> PlanFds();
  // The lane of the n-th plan that streams. Lives as long as the daemon.
  FakeLane& lane(size_t n = 0);
  size_t lanes();
  std::vector<pb::SetPlanRequest> plans();
  std::vector<uint64_t> cleared_plans();

 private:
  void Accept();
  void Serve(Peer* peer);
  void Answer(Peer& peer, const pb::ClientMessage& message,
              const std::vector<int>& fds);

  const Script script_;
  std::string folder_;
  std::string path_;
  std::string instance_id_;
  int slab_ = -1;
  int listening_ = -1;
  std::mutex mu_;
  // Guarded by mu_.
  bool stopping_ = false;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::thread> threads_;
  std::vector<uint64_t> released_;
  std::string published_bytes_;
  pb::Group published_group_;
  FakePlan plan_;
  std::vector<std::unique_ptr<FakeLane>> lanes_;
  std::vector<pb::SetPlanRequest> plans_;
  std::vector<uint64_t> cleared_plans_;
  std::thread acceptor_;
};

}  // namespace hoist_test

#endif  // HOIST_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
