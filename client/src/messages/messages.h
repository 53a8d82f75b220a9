// The session protocol's messages.
//
// A request is protobuf-c's own struct, filled by the code that knows its
// values. decode.cc checks replies and converts them to this library's types: a
// faulty or false daemon must not crash the worker.
#ifndef HOIST_CLIENT_SRC_MESSAGES_MESSAGES_H_
#define HOIST_CLIENT_SRC_MESSAGES_MESSAGES_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "client/src/device/device_map.h"
#include "client/src/messages/model_table.h"
#include "hoist/c/plan.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"
#include "hoist/v1/session.pb-c.h"

namespace hoist {

// --- Requests: messages of session.proto, as protobuf-c has them. ---

// A ClientMessage's bytes. `body` is one of its bodies, such as a StageRequest.
std::string Pack(uint64_t request_id, const ProtobufCMessage& body);

// protobuf-c's pointers are not const, though packing only reads. These borrow
// a message's data.
inline char* Text(const char* text) { return const_cast<char*>(text); }
inline ProtobufCBinaryData Binary(std::span<const uint8_t> bytes) {
  return {bytes.size(), const_cast<uint8_t*>(bytes.data())};
}
// std::tie(request.n_groups, request.groups) = Items(groups);
template <typename T>
std::pair<size_t, T*> Items(std::span<const T> items) {
  return {items.size(), const_cast<T*>(items.data())};
}
template <typename T>
std::pair<size_t, T*> Items(const std::vector<T>& items) {
  return Items(std::span(items));
}

// Owns a repeated field of messages.
template <typename Message>
class Repeated {
 public:
  void Add(const Message& message) { messages_.push_back(message); }
  Message& back() { return messages_.back(); }
  // Valid until the next Add.
  std::pair<size_t, Message**> Items() {
    pointers_.clear();
    for (Message& message : messages_) pointers_.push_back(&message);
    return {pointers_.size(), pointers_.data()};
  }

 private:
  std::vector<Message> messages_;
  std::vector<Message*> pointers_;
};

// Of a plan's options, or a permit's.
template <typename Options>
Hoist__V1__Share ShareOf(const Options& options) {
  Hoist__V1__Share share = HOIST__V1__SHARE__INIT;
  share.weight = options.weight;
  share.priority = options.priority;
  share.max_bytes_per_second = options.max_bytes_per_second;
  return share;
}

// --- Replies. ---

// As in the proto.
enum class DeviceKind { kEmulated = 1, kCuda = 2, kInPlace = 3 };

struct DeviceFacts {
  uint32_t index = 0;
  std::string name;
  std::array<uint8_t, 16> uuid = {};
  DeviceKind kind = DeviceKind::kEmulated;
  uint64_t pool_bytes = 0;
  uint64_t span_bytes = 0;
  uint64_t link_bytes_per_second = 0;  // Emulated; 0: as fast as memory is.
};

struct OpenReply {
  uint64_t session_id = 0;
  std::string daemon_version;
  std::array<uint8_t, 16> instance_id = {};
  std::vector<DeviceFacts> devices;
  std::optional<DeviceFacts> in_place;  // In-place host memory.
  std::string no_in_place;              // Why there is none.
};

struct LeaseGrant {
  uint64_t id = 0;
  uint64_t model_id = 0;
  uint32_t group = 0;
  uint32_t device = 0;
  uint64_t offset_bytes = 0;
  uint64_t image_bytes = 0;
  bool was_resident = false;
  bool apart = false;
  std::vector<SlabImport> slabs;  // All on `device`.
  // Address of the image; set by the session once the slabs are mapped. Unset
  // for a separate slab: `slab` has the image.
  const void* address = nullptr;
  SlabHandle slab;
};

struct PlannedGroup {
  uint32_t group = 0;
  bool resident = false;
  uint64_t offset_bytes = 0;  // Streamed: its slot's, in the device's span.
  uint64_t slot_bytes = 0;
  // Address of the slot; set by the session once the slabs are mapped.
  const void* address = nullptr;

  // Whether both share a place in the ring.
  bool Overlaps(const PlannedGroup& other) const {
    return offset_bytes < other.offset_bytes + other.slot_bytes &&
           other.offset_bytes < offset_bytes + slot_bytes;
  }
};

struct PlanGrant {
  hoist_plan_info info = {};         // The fields known to hoistd.
  std::vector<PlannedGroup> groups;  // In order of first use.
  UniqueFd lane;
  UniqueFd wake;
  std::vector<SlabImport> slabs;  // All on `slab_device`.
  std::optional<uint32_t> slab_device;
  // Why the plan that hoistd made cannot be used here.
  Status admitted;
};

struct ArenaGrant {
  uint64_t id = 0;
  uint64_t bytes = 0;
  std::vector<SlabImport> slabs;  // The arena, end to end.
};

struct PermitGrant {
  uint64_t id = 0;
  UniqueFd memory;  // See hoist/shared/permit_layout.h.
  UniqueFd wake;
};

// hoistd asks for slabs that this session does not use.
struct SlabAsk {
  uint32_t device = 0;
  uint64_t number = 0;
  std::vector<uint64_t> slabs;  // Their ids.
};

// hoistd asks for the memory of this plan, once it is idle for so long.
struct GiveWay {
  uint64_t plan = 0;
  std::chrono::milliseconds idle{0};
};

// hoistd asks for the plans that gave way to be set again.
struct Wake {};

using DaemonAsk = std::variant<SlabAsk, GiveWay, Wake>;

// hoistd died, and its successor resumes the session.
struct Resumed {
  uint64_t number = 0;
};

// The session's holdings that have ended.
struct ResumeReply {
  std::vector<uint64_t> lost_leases;
  std::vector<uint64_t> lost_plans;
};

// Reads of in-place groups by this session's passes, or by all workers'.
struct KnownHeat {
  std::vector<uint32_t> groups;
  std::vector<float> heat;  // One per group.
};

struct Reply {
  uint64_t request_id = 0;  // 0: no reply, but an end, a request or a notice.
  Status status;            // hoistd's answer.
  std::variant<std::monostate, OpenReply, std::shared_ptr<const ModelTable>,
               LeaseGrant, PlanGrant, ArenaGrant, PermitGrant, DaemonAsk,
               Resumed, ResumeReply, KnownHeat>
      body;
};

// Takes the descriptors out of `packet`; closes those that no slab names.
// Internal: not a DaemonMessage, or a contradictory one.
Result<Reply> DecodeReply(Packet packet);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MESSAGES_MESSAGES_H_
