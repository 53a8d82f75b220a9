// What a successor believes of sessions, models and what lies on devices:
// records of any content, alone and beside each other.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/convert/persisted_convert.h"
#include "daemon/core/device_space.h"
#include "daemon/core/node_restore.h"
#include "daemon/successor/persisted_keys.h"
#include "daemon/successor/persisted_node.h"
#include "tests/fuzz/fuzz.h"

namespace hoistd {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kDeviceBytes = 64 * kPage;
constexpr uint64_t kSlabBytes = 16 * kPage;
const ModelId kOurs(7);  // Of files; the record of any other is left out.

// What was accepted is written as it is read, again and again.
template <typename T, typename Read>
void RoundTrip(absl::string_view bytes, Read read) {
  const absl::StatusOr<T> first = read(bytes);
  if (!first.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(first.status()));
    FUZZ_REQUIRE(first.status().message().size() < 200);
    return;
  }
  const std::string written = ToRecord(*first);
  const absl::StatusOr<T> again = read(written);
  FUZZ_REQUIRE(again.ok());
  FUZZ_REQUIRE(ToRecord(*again) == written);
}

void ReadSpec(absl::string_view bytes) {
  const auto spec = SpecFromRecord(bytes);
  if (!spec.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(spec.status()));
    return;
  }
  const ModelSpec& model = **spec;
  FUZZ_REQUIRE(!model.published && model.group_contents.empty());
  FUZZ_REQUIRE(model.files.size() == model.identities.size() &&
               model.files.size() == model.sheets.size());
  uint64_t book_bytes = 0;
  for (const auto& sheet : model.sheets) book_bytes += BookBytesOf(*sheet);
  uint64_t tensors = 0;
  for (const auto& group : model.groups) {
    book_bytes += BookBytesOf(*group);
    tensors += group->tensors.size();
    for (const SourceRun& run : group->runs) {
      FUZZ_REQUIRE(run.from.file < model.files.size());
      FUZZ_REQUIRE(run.from.bytes <= group->image_bytes &&
                   run.image_offset <= group->image_bytes - run.from.bytes);
    }
  }
  FUZZ_REQUIRE(model.book_bytes == book_bytes && model.tensors == tensors);
  const std::string written = ToRecord(model);
  const auto again = SpecFromRecord(written);
  FUZZ_REQUIRE(again.ok() && ToRecord(**again) == written);
}

void ReadOne(uint8_t what, absl::string_view bytes) {
  switch (what) {
    case 0:
      return RoundTrip<PersistedInstance>(bytes, InstanceFromRecord);
    case 1:
      return RoundTrip<ModelRecord>(bytes, ModelFromRecord);
    case 2:
      return RoundTrip<PersistedSlab>(bytes, SlabFromRecord);
    case 3:
      return RoundTrip<PersistedCopy>(bytes, CopyFromRecord);
    case 4:
      return RoundTrip<PersistedSession>(bytes, [](absl::string_view b) {
        return SessionFromRecord(SessionId(1), b);
      });
    case 5:
      return RoundTrip<PersistedLease>(bytes, [](absl::string_view b) {
        return LeaseFromRecord(LeaseId(1), b);
      });
    case 6:
      return RoundTrip<PlanRecord>(bytes, [](absl::string_view b) {
        return PlanFromRecord(PlanId(1), b);
      });
    case 11:
      return RoundTrip<PersistedArena>(bytes, [](absl::string_view b) {
        return ArenaFromRecord(ArenaId(1), b);
      });
    case 9:
      return RoundTrip<PersistedPin>(bytes, PinFromRecord);
    case 10:
      return RoundTrip<LoadCap>(bytes, LoadCapFromRecord);
    default:
      return ReadSpec(bytes);
  }
}

std::shared_ptr<const ModelSpec> OurSpec() {
  static const std::shared_ptr<const ModelSpec> spec = [] {
    auto made = std::make_shared<ModelSpec>();
    made->name = "m";
    for (uint64_t g = 0; g < 3; ++g) {
      auto group = std::make_shared<Group>();
      group->name = "g" + std::to_string(g);
      group->image_bytes = (g + 1) * kPage;
      made->image_bytes += group->image_bytes;
      made->groups.push_back(std::move(group));
    }
    return made;
  }();
  return spec;
}

// As Engine::PutBack does, on a node of one device.
absl::Status PutBack(const FoundNode& found, Node& node) {
  NodeRestore restore(node);
  absl::Status status =
      restore.AddModel(kOurs, OurSpec(), User(1), Readers::kOwner);
  FUZZ_REQUIRE(status.ok());
  for (const PersistedSlab& slab : found.slabs) {
    SlabShare share;
    share.backing = slab.slab.backing;
    share.keep_fd = slab.keep_fd;
    if (status.ok()) status = restore.AddSlab(slab, share);
  }
  for (const PersistedCopy& copy : found.copies) {
    if (status.ok()) status = restore.AddCopy(copy, absl::UnixEpoch());
  }
  for (const PersistedSession& session : found.sessions) {
    if (!status.ok()) break;
    status = restore.AddSession(session.id, *session.args, absl::UnixEpoch());
  }
  for (const PersistedLease& lease : found.leases) {
    if (!status.ok()) break;
    status = restore.AddLease(lease.id, lease.session, *lease.copy);
  }
  for (const PlanRecord& plan : found.plans) {
    if (status.ok()) status = restore.AddPlan(plan.session, plan.grant);
  }
  for (const PersistedArena& arena : found.arenas) {
    if (status.ok()) status = restore.AddArena(arena);
  }
  restore.NoMoreArenas();
  for (const auto& [number, copy] : found.pins) {
    if (status.ok()) restore.AddPin(copy);
  }
  return status;
}

// What was put back is within the device, and all of it is given back when its
// sessions are over.
void RequireSound(const FoundNode& found, Node& node) {
  const auto device = [&] { return node.picture().Tiers(absl::UnixEpoch()); };
  for (const TierUse& tier : device()) {
    if (tier.at.tier != Tier::kDevice) continue;
    FUZZ_REQUIRE(tier.used_bytes <= tier.allocated_bytes &&
                 tier.allocated_bytes <= tier.capacity_bytes);
    uint64_t held = 0;
    for (const Holder& holder : tier.holders) held += holder.bytes;
    FUZZ_REQUIRE(held == tier.used_bytes);
  }
  node.CheckBooks();
  Effects effects;
  for (const PersistedSession& session : found.sessions) {
    node.CloseSession(session.id, absl::UnixEpoch(), effects);
  }
  for (const EndedPlan& ended : std::exchange(effects.ended, {})) {
    node.FreePlan(ended.plan, absl::UnixEpoch(), effects);
  }
  CopySelector all;
  all.asker = {.uid = User(1)};
  all.model = "m";
  const std::vector<CopyRef> copies =
      *node.picture().Select(all, /*existing_only=*/true);
  node.Unpin(copies, absl::UnixEpoch(), effects);
  node.Evict(copies, absl::UnixEpoch(), effects);
  for (const TierUse& tier : device()) {
    FUZZ_REQUIRE(tier.used_bytes == 0 && tier.leased_bytes == 0);
  }
  FUZZ_REQUIRE(node.Forget(kOurs, absl::UnixEpoch(), effects, nullptr).ok());
}

hoist::UniqueFd AnFd() { return hoist::UniqueFd(dup(STDERR_FILENO)); }

// A book's records, with descriptors for those that need one.
void ReadAll(fuzz::Input& input) {
  std::map<PersistedKey, std::string> records;
  std::map<PersistedKey, hoist::UniqueFd> descriptors;
  while (!input.empty() && records.size() < 32) {
    const uint8_t kind = input.Take();
    const PersistedKey key = {uint32_t{kind} & 15, input.Take<uint64_t>()};
    const auto size = input.Take<uint16_t>();
    records[key] = input.Bytes(size);
    if ((kind & 16) == 0) descriptors[key] = AnFd();
  }
  const size_t given = descriptors.size();
  absl::StatusOr<FoundNode> found = FindNode(records, std::move(descriptors));
  if (!found.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(found.status()));
    return;
  }
  FUZZ_REQUIRE(found->descriptors.size() == given);
  for (const PersistedSession& session : found->sessions) {
    FUZZ_REQUIRE(session.args->socket->valid());
  }
  NodeOptions options;
  options.host_capacity_bytes = kDeviceBytes;
  options.slab_bytes = kSlabBytes;
  options.device_capacity_bytes = {kDeviceBytes};
  options.keeps = true;
  DeviceInfo device;
  device.granularity = kPage;
  device.span_bytes = DeviceSpace::SpanFor(kDeviceBytes, kPage);
  Node node(options, {device});
  if (PutBack(*found, node).ok()) RequireSound(*found, node);
}

}  // namespace

namespace fuzz {
namespace {

class Book {
 public:
  Book() { out_.Put(uint8_t{8}); }
  Book& Add(PersistedKey key, const std::string& record) {
    out_.Put(static_cast<uint8_t>(key.kind))
        .Put(key.id)
        .Put(static_cast<uint16_t>(record.size()))
        .Bytes(record);
    return *this;
  }
  const std::string& str() const { return out_.str(); }

 private:
  Output out_;
};

PersistedSlab ASlab(uint64_t id, uint64_t at) {
  PersistedSlab slab;
  slab.device = DeviceIndex(0);
  slab.slab = {SlabId(id), at * kSlabBytes, kSlabBytes, Backing::kMemfd};
  slab.reader = User(1);
  return slab;
}

PersistedCopy ACopy() {
  PersistedCopy copy;
  copy.key = GroupKey{kOurs, GroupIndex(1)};
  copy.group = "g1";
  return copy;
}

PersistedSession ASession() {
  PersistedSession session;
  session.id = SessionId(8);
  session.args = OpenSessionArgs();
  session.args->client_name = "worker";
  session.args->device_budget_bytes = kDeviceBytes;
  session.args->peer = {User(1), 123, false, "socket"};
  session.args->protocol = 7;
  return session;
}

PersistedLease ALease() {
  PersistedLease lease;
  lease.session = SessionId(8);
  lease.copy = CopyRef{{kOurs, GroupIndex(1)}, {OnDevice(DeviceIndex(0)), 0}};
  return lease;
}

PlanRecord APlan() {
  PlanRecord plan;
  plan.session = SessionId(8);
  PlanGrant& grant = plan.grant;
  grant.model = kOurs;
  grant.budget_bytes = 8 * kPage;
  grant.groups = {{GroupIndex(0), false, {0, kPage}, kPage},
                  {GroupIndex(2), false, {0, 3 * kPage}, 3 * kPage},
                  {GroupIndex(1), true, {}, 2 * kPage}};
  grant.lane_order = {0, 1};
  grant.ring_offset = 4 * kPage;
  grant.ring_bytes = 4 * kPage;
  grant.resident_bytes = 2 * kPage;
  grant.streamed_bytes = 4 * kPage;
  grant.lead = 1;
  plan.share = {3, -1, 5000};
  plan.stage_deadline = absl::Milliseconds(1500);
  return plan;
}

std::string ASpec() {
  ModelSpec spec = *OurSpec();
  spec.files = {"a.safetensors"};
  spec.identities = {{1, 2, 3, -4, 5, {}}};
  auto sheet = std::make_shared<Sheet>();
  sheet->runs = {{0, 100, 4096}};
  sheet->bytes = 4096;
  spec.sheets = {sheet};
  auto group = std::make_shared<Group>(*spec.groups[0]);
  group->tensors = {{"w", hoist::DType::kBF16, {2, 3}, {3, 1}, 64, 12},
                    {"empty", hoist::DType::kF32, {0}, {}, 0, 0}};
  group->runs = {{{0, 64, 3000}, 128}};
  spec.groups[0] = group;
  return ToRecord(spec);
}

}  // namespace

Seeds MakeSeeds() {
  const auto one = [](uint8_t what, const std::string& record) {
    return Output().Put(what).Bytes(record).str();
  };
  PersistedInstance instance;
  instance.generation = 41;
  instance.devices.resize(2);
  ModelRecord model;
  model.owner = *User::Tenant("blue");
  model.name = "m";
  model.files = {5, 6};
  model.spec = 7;
  const DeviceIndex device(0);
  Book book;
  book.Add(SlabKey(device, ASlab(3, 0).slab), ToRecord(ASlab(3, 0)))
      .Add(SlabKey(device, ASlab(4, 1).slab), ToRecord(ASlab(4, 1)))
      .Add(CopyKey(device, 0), ToRecord(ACopy()))
      .Add(KeyOf(PersistedKind::kSession, 8), ToRecord(ASession()))
      .Add(KeyOf(PersistedKind::kLease, 9), ToRecord(ALease()))
      .Add(KeyOf(PersistedKind::kPlan, 10), ToRecord(APlan()))
      .Add(KeyOf(PersistedKind::kPin, 1),
           ToRecord(PersistedPin{*ALease().copy}))
      .Add(KeyOf(PersistedKind::kPin, 2),
           ToRecord(PersistedPin{{{kOurs, GroupIndex(0)}, kHost}}))
      .Add(KeyOf(PersistedKind::kLoadCap, 0), ToRecord(LoadCap{5000, 0}));
  return {
      {"instance", one(0, ToRecord(instance))},
      {"model", one(1, ToRecord(model))},
      {"slab", one(2, ToRecord(ASlab(3, 0)))},
      {"copy", one(3, ToRecord(ACopy()))},
      {"session", one(4, ToRecord(ASession()))},
      {"lease", one(5, ToRecord(ALease()))},
      {"plan", one(6, ToRecord(APlan()))},
      {"spec", one(7, ASpec())},
      {"pin", one(9, ToRecord(PersistedPin{{{kOurs, GroupIndex(1)}, kHost}}))},
      {"load_cap", one(10, ToRecord(LoadCap{5000, 1}))},
      {"arena", one(11, ToRecord(PersistedArena{
                            ArenaId(1), SessionId(8), DeviceIndex(0), {4}}))},
      {"book", book.str()}};
}

}  // namespace fuzz
}  // namespace hoistd

// u8 which record, then it; 8: records with their keys (ReadAll).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  const uint8_t what = input.Take() % 11;
  if (what == 8) {
    ReadAll(input);
  } else {
    const std::string_view rest = input.Rest();
    ReadOne(what, {rest.data(), rest.size()});
  }
  return 0;
}
