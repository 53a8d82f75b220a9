// The session protocol's messages as this library's values.
//
// The only two files that know protobuf-c are encode.cc and decode.cc. What
// comes from the daemon is checked in the latter: a daemon that errs, or is
// none, must not make the worker crash.
#ifndef HOIST_CLIENT_SRC_MESSAGES_H_
#define HOIST_CLIENT_SRC_MESSAGES_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "client/src/device_map.h"
#include "client/src/model_table.h"
#include "hoist/shared/packet_socket.h"
#include "hoist/shared/status.h"
#include "hoist/shared/unique_fd.h"

namespace hoist {

// --- Requests. ---

struct OpenFile {
  std::string name;  // Base name.
  UniqueFd fd;
};

struct NamedGroup {
  std::string name;
  std::vector<std::string> tensors;
};

struct JoinedTensor {
  struct Part {
    std::string tensor;
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
    uint64_t count = 0;
    uint64_t stride_bytes = 0;
  };
  std::string name;
  std::vector<int64_t> shape;
  std::vector<Part> parts;
};

struct RegisterRequest {
  std::string name;
  std::vector<OpenFile> shards;
  std::vector<OpenFile> index;  // One or none.
  int rule = 0;                 // HOIST_GROUPS_*, the proto's numbers.
  std::vector<NamedGroup> groups;
  std::vector<JoinedTensor> joined;
  int readers = 0;  // HOIST_READERS_*, the proto's numbers.
};

struct PublishRequest {
  std::string model;
  GroupEntry group;
  UniqueFd image;
  int readers = 0;
  uint64_t deadline_ms = 0;
  bool of_session = false;
  std::vector<uint8_t> content;  // That it must be; empty: whatever it is.
};

struct StageRequest {
  uint64_t model_id = 0;
  uint32_t group = 0;
  uint32_t device = 0;
  uint64_t deadline_ms = 0;
  bool apart = false;
  bool background = false;
};

struct ReadImageRequest {
  uint64_t model_id = 0;
  uint32_t group = 0;
  uint64_t deadline_ms = 0;
};

// Of which a plan's caller fills all but `model_id` and `replaces`.
struct SetPlanRequest {
  uint64_t model_id = 0;
  uint32_t device = 0;
  uint64_t budget_bytes = 0;
  std::vector<uint32_t> order;
  uint64_t deadline_ms = 0;
  uint64_t replaces = 0;
  uint64_t stage_deadline_ms = 0;  // 0: as hoistd has it.
  uint32_t weight = 0;
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;
};

struct OpenCopierRequest {
  uint32_t device = 0;
  uint32_t weight = 0;
  int32_t priority = 0;
  uint64_t max_bytes_per_second = 0;
};

// What a session's passes read of groups in place, in bytes a pass; and of what
// was touched since the last, where it lay.
struct HeatReport {
  uint64_t model_id = 0;
  std::vector<uint32_t> groups;
  std::vector<float> heat;  // As many.
  uint32_t device = 0;      // Which read them.
  uint64_t touched_hot_bytes = 0;
  uint64_t touched_cold_bytes = 0;
};

// hoistd needs the memory of slabs that this session does not use.
struct SlabAsk {
  uint32_t device = 0;
  uint64_t number = 0;
  std::vector<uint64_t> slabs;  // Their ids.
};

struct OpenSlab {
  uint32_t device = 0;
  uint64_t id = 0;
};

// What a session has, of which a new hoistd has told it that it goes on.
struct ResumeRequest {
  uint64_t number = 0;
  std::vector<uint64_t> leases;
  std::vector<uint64_t> plans;
  std::vector<OpenSlab> slabs;
  std::vector<uint64_t> arenas;
};

// Each gives a ClientMessage's bytes. Descriptors are numbered in the order in
// which they are to be attached: shards, then the index; the image; the memfd
// that an image is read into.
std::string EncodeOpenSession(uint64_t request_id, const std::string& name,
                              uint64_t device_budget_bytes);
std::string EncodeRegister(uint64_t request_id, const RegisterRequest& request);
std::string EncodePublish(uint64_t request_id, const PublishRequest& request);
std::string EncodeDescribe(uint64_t request_id, const std::string& name);
std::string EncodeFindContent(uint64_t request_id,
                              std::span<const uint8_t> content);
std::string EncodeForget(uint64_t request_id, uint64_t model_id);
std::string EncodeStage(uint64_t request_id, const StageRequest& request);
std::string EncodeReadImage(uint64_t request_id,
                            const ReadImageRequest& request);
std::string EncodePrefetch(uint64_t request_id, uint64_t model_id,
                           std::span<const uint32_t> groups, int tier,
                           uint32_t device);
std::string EncodeHeat(uint64_t request_id, const HeatReport& report);
std::string EncodeSetOrder(uint64_t request_id, uint64_t model_id,
                           std::span<const uint32_t> groups);
std::string EncodeRelease(uint64_t request_id,
                          std::span<const uint64_t> lease_ids);
// Of the slabs that `ask` names, those that are closed.
std::string EncodeSlabsClosed(uint64_t request_id, const SlabAsk& ask,
                              std::span<const uint64_t> closed);
std::string EncodeSetPlan(uint64_t request_id, const SetPlanRequest& request);
std::string EncodeClearPlan(uint64_t request_id, uint64_t plan_id);
std::string EncodeOpenArena(uint64_t request_id, uint64_t bytes,
                            uint64_t deadline_ms);
std::string EncodeCloseArena(uint64_t request_id, uint64_t arena_id);
std::string EncodeOpenCopier(uint64_t request_id,
                             const OpenCopierRequest& request);
std::string EncodeCloseCopier(uint64_t request_id, uint64_t copier_id);
std::string EncodeResume(uint64_t request_id, const ResumeRequest& request);

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
  std::optional<DeviceFacts> in_place;  // Host memory that those read.
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
  // Of the image; set by the session, once the slabs are mapped. Apart: unset,
  // and `slab` is what the image lies in.
  const void* address = nullptr;
  SlabHandle slab;
};

struct PlannedGroup {
  uint32_t group = 0;
  bool resident = false;
  uint64_t offset_bytes = 0;  // Streamed: of its slot, in the device's span.
  uint64_t slot_bytes = 0;
  // Of the slot; set by the session, once the slabs are mapped.
  const void* address = nullptr;
};

struct PlanGrant {
  uint64_t id = 0;
  uint64_t budget_bytes = 0;
  std::vector<PlannedGroup> groups;  // In order of first use.
  uint64_t resident_bytes = 0;
  uint64_t ring_bytes = 0;
  uint64_t streamed_bytes = 0;
  uint32_t lead = 0;
  UniqueFd lane;
  UniqueFd wake;
  std::vector<SlabImport> slabs;  // All on `slab_device`.
  std::optional<uint32_t> slab_device;
  // Why the plan stands at hoistd and cannot be used here.
  Status admitted;
};

struct ArenaGrant {
  uint64_t id = 0;
  uint64_t bytes = 0;
  std::vector<SlabImport> slabs;  // It is these, end to end.
};

struct CopierGrant {
  uint64_t id = 0;
  UniqueFd memory;  // See hoist/shared/copier_layout.h.
  UniqueFd wake;
};

// hoistd died, and another goes on with the session.
struct Resumed {
  uint64_t number = 0;
};

// What had ended of what a ResumeRequest named.
struct ResumeReply {
  std::vector<uint64_t> lost_leases;
  std::vector<uint64_t> lost_plans;
};

// What hoistd knows of all workers' passes, by group.
struct KnownHeat {
  std::vector<uint32_t> groups;
  std::vector<float> heat;  // As many.
};

struct Reply {
  uint64_t request_id = 0;  // 0: no reply; it ends the session, asks or tells.
  Status status;            // What hoistd answered.
  std::variant<std::monostate, OpenReply, std::shared_ptr<const ModelTable>,
               LeaseGrant, PlanGrant, ArenaGrant, CopierGrant, SlabAsk, Resumed,
               ResumeReply, KnownHeat>
      body;
};

// Takes the descriptors out of `packet`; those that no slab names are closed.
// Internal: not a DaemonMessage, or one that contradicts itself.
Result<Reply> DecodeReply(Packet packet);

}  // namespace hoist

#endif  // HOIST_CLIENT_SRC_MESSAGES_H_
