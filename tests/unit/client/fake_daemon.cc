#include "tests/unit/client/fake_daemon.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "hoist/shared/packet_socket.h"
#include "hoist/shared/unique_fd.h"

namespace hoist_test {
namespace {

constexpr uint64_t kSlabBytes = 64 * 1024;
constexpr uint64_t kImageBytes = 4096;
constexpr uint32_t kGroups = 6;  // That have bytes.
constexpr uint64_t kRingOffset = 32 * 1024;
constexpr uint64_t kDeepModel = 8;

pb::Tensor* AddTensor(pb::Group* group, const char* name, pb::DType dtype,
                      std::vector<int64_t> shape, uint64_t offset,
                      uint64_t bytes) {
  pb::Tensor* tensor = group->add_tensors();
  tensor->set_name(name);
  tensor->set_dtype(dtype);
  for (int64_t d : shape) tensor->add_shape(d);
  tensor->set_offset_bytes(offset);
  tensor->set_size_bytes(bytes);
  return tensor;
}

}  // namespace

void Peer::Send(const pb::DaemonMessage& message, std::span<const int> fds) {
  (void)hoist::SendPacket(socket_, message.SerializeAsString(), fds);
}

void Peer::SendRaw(const std::string& bytes) {
  (void)send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

void Peer::SendBody(const std::string& body, std::span<const int> fds) {
  (void)hoist::SendPacket(socket_, body, fds);
}

Peer::~Peer() { close(socket_); }

void Peer::HangUp() { shutdown(socket_, SHUT_RDWR); }

FakeDaemon::FakeDaemon(Script script) : script_(std::move(script)) {
  char folder[] = "/tmp/hoist-fake-XXXXXX";
  folder_ = mkdtemp(folder);
  path_ = folder_ + "/s";
  // As hoistd's: new at each start, also in another process.
  static std::atomic<uint32_t> starts{0};
  const uint32_t own[] = {static_cast<uint32_t>(getpid()), starts++};
  instance_id_ =
      "instance" + std::string(reinterpret_cast<const char*>(own), sizeof(own));
  slab_ = hoist::CreateMemfd("fake-slab", kSlabBytes).value().release();
  for (uint32_t group = 0; group < kGroups; ++group) {
    const std::string image(kImageBytes, static_cast<char>(Byte(group)));
    if (pwrite(slab_, image.data(), image.size(),
               static_cast<off_t>(group * kImageBytes)) < 0) {
      std::perror("pwrite");
    }
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  listening_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (bind(listening_, reinterpret_cast<sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listening_, 16) != 0) {
    std::perror("listen");
  }
  acceptor_ = std::thread([this] { Accept(); });
}

FakeDaemon::~FakeDaemon() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopping_ = true;
    for (auto& peer : peers_) peer->HangUp();
  }
  shutdown(listening_, SHUT_RDWR);
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  close(listening_);
  close(slab_);
  unlink(path_.c_str());
  rmdir(folder_.c_str());
}

void FakeDaemon::Accept() {
  while (true) {
    hoist::UniqueFd socket(accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard<std::mutex> lock(mu_);
    if (!socket.valid() || stopping_) return;
    peers_.push_back(std::make_unique<Peer>(socket.release()));
    Peer* peer = peers_.back().get();
    threads_.emplace_back([this, peer] { Serve(peer); });
  }
}

void FakeDaemon::Serve(Peer* peer) {
  while (true) {
    auto packet = hoist::ReceivePacket(peer->socket());
    if (!packet.ok() || !packet->has_value()) return;
    pb::ClientMessage message;
    if (!message.ParseFromString((*packet)->body)) return;
    std::vector<int> fds;  // Closed with the packet.
    for (const hoist::UniqueFd& fd : (*packet)->fds) fds.push_back(fd.get());
    if (script_ != nullptr && script_(*peer, message, fds)) continue;
    Answer(*peer, message, fds);
  }
}

void FakeDaemon::Answer(Peer& peer, const pb::ClientMessage& message,
                        const std::vector<int>& fds) {
  pb::DaemonMessage reply;
  reply.set_request_id(message.request_id());
  switch (message.body_case()) {
    case pb::ClientMessage::kOpenSession:
      return peer.Send(OpenReply(message.request_id()));
    case pb::ClientMessage::kStage: {
      const bool first = !std::exchange(peer.slab_sent, true);
      const int fd = slab_;
      reply = LeaseReply(message.request_id(), message.stage().group(), first);
      reply.mutable_lease()->set_model_id(message.stage().model_id());
      return peer.Send(reply, std::span(&fd, first ? 1 : 0));
    }
    case pb::ClientMessage::kSetPlan:
      reply = PlanReply(message.request_id(), message.set_plan());
      peer.slab_sent = true;
      return peer.Send(reply, PlanFds());
    case pb::ClientMessage::kClearPlan: {
      const std::lock_guard<std::mutex> lock(mu_);
      cleared_plans_.push_back(message.clear_plan().plan_id());
      break;
    }
    case pb::ClientMessage::kRelease: {
      const std::lock_guard<std::mutex> lock(mu_);
      for (uint64_t id : message.release().lease_ids()) released_.push_back(id);
      break;
    }
    case pb::ClientMessage::kPublish: {
      const std::lock_guard<std::mutex> lock(mu_);
      published_group_ = message.publish().group();
      published_bytes_.resize(published_group_.image_bytes());
      if (pread(fds.at(message.publish().fd_index()), published_bytes_.data(),
                published_bytes_.size(), 0) < 0) {
        std::perror("pread");
      }
      *reply.mutable_model() = ModelMessage();
      break;
    }
    case pb::ClientMessage::kFindContent:
      *reply.mutable_model() = ModelMessage();
      break;
    case pb::ClientMessage::kDescribeModel:
      *reply.mutable_model() = message.describe_model().name() == "deep"
                                   ? DeepModelMessage()
                                   : ModelMessage();
      break;
    case pb::ClientMessage::kRegisterModel:
      *reply.mutable_model() = ModelMessage();
      break;
    default:
      break;
  }
  peer.Send(reply);
}

std::vector<uint64_t> FakeDaemon::released() {
  const std::lock_guard<std::mutex> lock(mu_);
  return released_;
}

std::pair<std::string, pb::Group> FakeDaemon::published() {
  const std::lock_guard<std::mutex> lock(mu_);
  return {published_bytes_, published_group_};
}

pb::Model FakeDaemon::ModelMessage() {
  pb::Model model;
  model.set_id(7);
  model.set_name("m");
  model.set_fingerprint(std::string(16, 'f'));
  model.set_image_bytes(2 * kImageBytes);
  pb::Group* a = model.add_groups();
  a->set_name("a");
  a->set_image_bytes(kImageBytes);
  AddTensor(a, "x", pb::DTYPE_F32, {2, 3}, 0, 24);
  AddTensor(a, "e", pb::DTYPE_F32, {0}, 256, 0);
  AddTensor(a, "z", pb::DTYPE_U8, {2}, 512, 2);
  pb::Group* b = model.add_groups();
  b->set_name("b");
  b->set_index(1);
  b->set_image_bytes(kImageBytes);
  AddTensor(b, "y", pb::DTYPE_BF16, {4}, 0, 8);
  return model;
}

pb::Model FakeDaemon::DeepModelMessage() {
  pb::Model model;
  model.set_id(kDeepModel);
  model.set_name("deep");
  model.set_fingerprint(std::string(16, 'd'));
  model.set_image_bytes(kGroups * kImageBytes);
  for (uint32_t g = 0; g < kGroups; ++g) {
    pb::Group* group = model.add_groups();
    group->set_name("l" + std::to_string(g));
    group->set_index(g);
    group->set_image_bytes(kImageBytes);
    AddTensor(group, "w", pb::DTYPE_F32, {1024}, 0, kImageBytes);
  }
  pb::Group* none = model.add_groups();
  none->set_name("none");
  none->set_index(kGroups);
  return model;
}

void FakeDaemon::PlanAs(FakePlan plan) {
  const std::lock_guard<std::mutex> lock(mu_);
  plan_ = std::move(plan);
}

pb::DaemonMessage FakeDaemon::PlanReply(uint64_t request_id,
                                        const pb::SetPlanRequest& request) {
  const std::lock_guard<std::mutex> lock(mu_);
  plans_.push_back(request);
  pb::DaemonMessage reply;
  reply.set_request_id(request_id);
  pb::Plan* plan = reply.mutable_plan();
  plan->set_id(500 + plans_.size());
  plan->set_budget_bytes(request.budget_bytes());
  plan->set_lead(1);
  std::vector<bool> seen(kGroups + 1);
  uint32_t streamed = 0;
  uint32_t positions = 0;
  const auto resident = [this](uint32_t group) {
    return std::count(plan_.residents.begin(), plan_.residents.end(), group) >
           0;
  };
  for (const uint32_t group : request.order()) {
    if (!resident(group)) ++positions;
    if (seen.at(group)) continue;
    seen[group] = true;
    pb::Plan::PlannedGroup* planned = plan->add_groups();
    planned->set_group(group);
    planned->set_resident(resident(group));
    if (planned->resident()) continue;
    planned->set_offset_bytes(kRingOffset +
                              streamed++ % plan_.slots * kImageBytes);
    planned->set_slot_bytes(kImageBytes);
  }
  plan->set_ring_bytes(streamed == 0 ? 0 : plan_.slots * kImageBytes);
  plan->set_resident_bytes(plan_.residents.size() * kImageBytes);
  plan->set_streamed_bytes(positions * kImageBytes);
  plan->set_lane_fd_index(1);
  plan->set_wake_fd_index(2);
  pb::Slab* slab = plan->add_slabs();
  slab->set_id(1);
  slab->set_size_bytes(kSlabBytes);
  slab->set_backing(pb::BACKING_MEMFD);
  if (streamed > 0) {
    lanes_.push_back(std::make_unique<FakeLane>(streamed, positions));
  }
  return reply;
}

std::vector<int> FakeDaemon::PlanFds() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (lanes_.empty()) return {slab_};
  return {slab_, lanes_.back()->memory_fd(), lanes_.back()->wake_fd()};
}

FakeLane& FakeDaemon::lane(size_t n) {
  const std::lock_guard<std::mutex> lock(mu_);
  return *lanes_.at(n);
}

size_t FakeDaemon::lanes() {
  const std::lock_guard<std::mutex> lock(mu_);
  return lanes_.size();
}

std::vector<pb::SetPlanRequest> FakeDaemon::plans() {
  const std::lock_guard<std::mutex> lock(mu_);
  return plans_;
}

std::vector<uint64_t> FakeDaemon::cleared_plans() {
  const std::lock_guard<std::mutex> lock(mu_);
  return cleared_plans_;
}

pb::DaemonMessage FakeDaemon::OpenReply(uint64_t request_id) const {
  pb::DaemonMessage reply;
  reply.set_request_id(request_id);
  pb::OpenSessionReply* open = reply.mutable_open_session();
  open->set_session_id(3);
  open->set_daemon_version("fake");
  open->set_instance_id(instance_id_);
  pb::Device* device = open->add_devices();
  device->set_name("emulated");
  device->set_uuid(std::string(16, 'u'));
  device->set_kind(pb::DEVICE_KIND_EMULATED);
  device->set_pool_bytes(kSlabBytes);
  device->set_span_bytes(16 * kSlabBytes);
  device->set_slab_bytes(kSlabBytes);
  return reply;
}

pb::DaemonMessage FakeDaemon::LeaseReply(uint64_t request_id, uint32_t group,
                                         bool with_slab) const {
  pb::DaemonMessage reply;
  reply.set_request_id(request_id);
  pb::Lease* lease = reply.mutable_lease();
  lease->set_id(100 + request_id);
  lease->set_model_id(7);
  lease->set_group(group);
  lease->set_offset_bytes(group * kImageBytes);
  lease->set_image_bytes(kImageBytes);
  if (with_slab) {
    pb::Slab* slab = lease->add_slabs();
    slab->set_id(1);
    slab->set_size_bytes(kSlabBytes);
    slab->set_backing(pb::BACKING_MEMFD);
  }
  return reply;
}

}  // namespace hoist_test
