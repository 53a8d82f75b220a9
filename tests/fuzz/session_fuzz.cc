// A request of the session socket, with descriptors, up to the engine's door:
// parsed, checked and routed as hoistd does it, answered, and the answer read
// as libhoist does.
#include <fcntl.h>
#include <google/protobuf/stubs/logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "client/src/messages/messages.h"
#include "daemon/convert/types_convert.h"
#include "daemon/model/published_group.h"
#include "daemon/session/mailbox.h"
#include "daemon/session/request_convert.h"
#include "daemon/session/verb_router.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/model_checks.h"

namespace hoistd {
namespace {

// What may come with a request; the first is what RegisterModel wants, the next
// two what Publish and ReadImage do.
enum Kind { kFile, kImage, kTarget, kPath, kWriteOnly, kLoose, kKinds };

int MakeDescriptor(int kind) {
  if (kind == kFile) return open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (kind == kPath) return open("/dev/zero", O_PATH | O_CLOEXEC);
  if (kind == kWriteOnly) return open("/dev/null", O_WRONLY | O_CLOEXEC);
  const int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  FUZZ_REQUIRE(fd >= 0 && ftruncate(fd, 8192) == 0);
  const int seals = kind == kImage    ? F_SEAL_WRITE | F_SEAL_SHRINK
                    : kind == kTarget ? F_SEAL_GROW | F_SEAL_SHRINK
                                      : 0;
  FUZZ_REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

hoist::UniqueFd NewDescriptor(int kind) {
  static const auto* const made = [] {
    auto* all = new std::array<int, kKinds>;
    for (int i = 0; i < kKinds; ++i) (*all)[i] = MakeDescriptor(i);
    return all;
  }();
  hoist::UniqueFd fd(fcntl((*made)[kind], F_DUPFD_CLOEXEC, 0));
  FUZZ_REQUIRE(fd.valid());
  return fd;
}

// libhoist believes what hoistd says of a group that hoistd accepted.
void RequireReadable(const std::shared_ptr<const Group>& group) {
  auto spec = std::make_shared<ModelSpec>();
  spec->name = "m";
  spec->groups.push_back(group);
  spec->image_bytes = group->image_bytes;
  auto model = std::make_shared<Model>();
  model->spec = spec;
  Reply reply;
  reply.ticket.request_id = 7;
  reply.body = ModelPtr(model);
  hoist::Packet packet;
  packet.body = EncodeReply(std::move(reply)).body;
  auto read = hoist::DecodeReply(std::move(packet));
  FUZZ_REQUIRE(read.ok() && read->request_id == 7 && read->status.ok());
  const auto& table =
      std::get<std::shared_ptr<const hoist::ModelTable>>(read->body);
  FUZZ_REQUIRE(table->groups().size() == 1);
  FUZZ_REQUIRE(table->groups()[0].name == group->name);
  FUZZ_REQUIRE(table->groups()[0].tensors.size() == group->tensors.size());
}

// Answers as it is asked, and looks at what it is asked.
class Engine final : public EngineApi {
 public:
  void OpenSession(OpenSessionArgs args, OnSessionWord on_word,
                   Done<SessionId> done) override {
    FUZZ_REQUIRE(args.client_name.size() <= kMaxClientNameBytes);
    if (args.closes_slabs) {
      on_word(SlabAsk{SessionId(1), DeviceIndex(0), 1, {SlabId(1)}});
      on_word(GiveWay{SessionId(1), PlanId(1), absl::Milliseconds(5)});
      on_word(Wake{SessionId(1)});
    }
    done(SessionId(1));
  }
  void Resume(SessionId, ResumeArgs has, OnSessionWord,
              Done<Resumed> done) override {
    Resumed lost;
    lost.lost_leases = std::move(has.leases);
    lost.lost_plans = std::move(has.plans);
    done(std::move(lost));
  }
  void CloseSession(SessionId) override {}
  void Trace(Done<std::unique_ptr<TraceRecording>> done) override {
    done(absl::UnimplementedError("none"));
  }
  NodeFacts facts() const override { return {}; }
  NodeNotes notes() const override { return {}; }
  absl::Time Now() const override { return absl::UnixEpoch(); }

 private:
  void Accept(SessionId, SessionCall call) override {
    std::visit([this](auto& one) { Answer(one); }, call);
  }
  void Accept(AdminCall) override { FUZZ_REQUIRE(false); }

  // OK where the answer carries nothing, else NotFound.
  template <typename Args>
  void Answer(Call<Args>& call) {
    if constexpr (std::is_void_v<typename Args::Result>) {
      call.done(absl::OkStatus());
    } else {
      call.done(absl::NotFoundError("none"));
    }
  }
  void Answer(Call<RegisterModelArgs>& call) {
    FUZZ_REQUIRE(!call.args.shards.empty());
    fuzz::RequireSoundRegister(call.args);
    fuzz::BuildAsWished(call.args);
    call.done(absl::NotFoundError(call.args.name));
  }
  void Answer(Call<PublishArgs>& call) {
    PublishArgs& args = call.args;
    fuzz::RequireName(args.model, kMaxModelNameBytes);
    fuzz::RequireSoundGroup(args.group);
    FUZZ_REQUIRE(args.image.valid());
    FUZZ_REQUIRE(args.deadline <= kMaxDeadline);
    FUZZ_REQUIRE(lseek(args.image.get(), 0, SEEK_END) >=
                 static_cast<off_t>(args.group.image_bytes));
    const auto group = fuzz::PublishAsSaid(std::move(args.group));
    if (group != nullptr) RequireReadable(group);
    call.done(absl::AlreadyExistsError(args.model));
  }
  void Answer(Call<ReadImageArgs>& call) {
    FUZZ_REQUIRE(call.args.memfd.valid() && call.args.memfd_bytes == 8192);
    call.done(absl::OkStatus());
  }
  void Answer(Call<DescribeModelArgs>& call) {
    fuzz::RequireName(call.args.name, kMaxModelNameBytes);
    call.done(absl::NotFoundError(call.args.name));
  }
  void Answer(Call<StageArgs>& call) {
    FUZZ_REQUIRE(call.args.deadline >= absl::ZeroDuration() &&
                 call.args.deadline <= kMaxDeadline);
    LeaseGrant grant;
    grant.id = LeaseId(1);
    grant.key = call.args.key;
    grant.device = call.args.device;
    call.done(std::move(grant));
  }
  void Answer(Call<PrefetchArgs>& call) {
    FUZZ_REQUIRE(call.args.groups.size() <= size_t{kMaxGroupsPerModel});
    call.done(absl::OkStatus());
  }
  void Answer(Call<ReleaseArgs>& call) {
    FUZZ_REQUIRE(call.args.leases.size() <= size_t{kMaxLeasesPerRelease});
    call.done(absl::OkStatus());
  }
  void Answer(Call<HeatArgs>& call) {
    FUZZ_REQUIRE(call.args.heat.size() <= size_t{kMaxGroupsPerModel});
    for (const GroupHeat& one : call.args.heat) {
      FUZZ_REQUIRE(std::isfinite(one.heat) && one.heat >= 0);
    }
    call.done(std::move(call.args.heat));
  }
  void Answer(Call<SpareArgs>& call) {
    FUZZ_REQUIRE(call.args.deadline >= absl::ZeroDuration() &&
                 call.args.deadline <= kMaxDeadline);
    call.done(absl::OkStatus());
  }
  void Answer(Call<SetOrderArgs>& call) {
    FUZZ_REQUIRE(call.args.groups.size() <= size_t{kMaxGroupsPerModel});
    call.done(absl::OkStatus());
  }
  void Answer(Call<SetPlanArgs>& call) {
    const SetPlanArgs& args = call.args;
    FUZZ_REQUIRE(args.order.size() <= size_t{kMaxPlanOrder});
    FUZZ_REQUIRE(CheckShare(args.share).ok());
    FUZZ_REQUIRE(args.deadline <= kMaxDeadline &&
                 args.stage_deadline <= kMaxDeadline);
    FUZZ_REQUIRE(args.stage_deadline > absl::ZeroDuration());
    OpenedPlan opened;
    opened.grant.id = PlanId(1);
    opened.grant.model = args.model;
    call.done(std::move(opened));
  }
};

void Serve(const pb::ClientMessage& message, std::vector<hoist::UniqueFd> fds) {
  static Engine* const engine = new Engine;
  static auto* const mailbox = new std::shared_ptr<Mailbox>(*Mailbox::Create());
  VerbRouter router(*engine, *mailbox);
  const Ticket ticket = {ConnectionId(1), message.request_id(), fds.size()};
  if (message.has_resume()) {
    router.Resume(ticket, SessionId(1), message.resume());
  }
  const absl::Status status =
      message.has_open_session()
          ? router.Open(ticket, message.open_session(), Peer(), nullptr)
          : router.Route(ticket, SessionId(1), message, std::move(fds));
  if (!status.ok()) {
    FUZZ_REQUIRE(absl::IsInvalidArgument(status) ||
                 absl::IsFailedPrecondition(status));
  }
  std::vector<Reply> replies = (*mailbox)->TakeAll();
  // One answer, or none where it was refused at the door; and an ask.
  size_t answers = 0;
  for (Reply& reply : replies) {
    const bool asks = std::holds_alternative<SlabAsk>(reply.body) ||
                      std::holds_alternative<GiveWay>(reply.body) ||
                      std::holds_alternative<Wake>(reply.body);
    answers += asks ? 0 : 1;
    hoist::Packet packet;
    packet.body = EncodeReply(std::move(reply)).body;
    auto read = hoist::DecodeReply(std::move(packet));
    FUZZ_REQUIRE(read.ok());
    FUZZ_REQUIRE(read->request_id == (asks ? 0 : message.request_id()));
  }
  const size_t expected =
      (status.ok() ? size_t{1} : 0) + (message.has_resume() ? size_t{1} : 0);
  FUZZ_REQUIRE(answers == expected);
}

std::string InputOf(std::initializer_list<int> kinds,
                    const pb::ClientMessage& message) {
  fuzz::Output out;
  out.Put(static_cast<uint8_t>(kinds.size()));
  for (const int kind : kinds) out.Put(static_cast<uint8_t>(kind));
  return out.Bytes(message.SerializeAsString()).str();
}

pb::ClientMessage RegisterSeed() {
  pb::ClientMessage message;
  message.set_request_id(3);
  auto& of = *message.mutable_register_model();
  of.set_name("m");
  for (uint32_t i = 0; i < 2; ++i) {
    auto& shard = *of.add_shards();
    shard.set_name("a" + std::to_string(i) + ".safetensors");
    shard.set_fd_index(i);
  }
  of.mutable_index()->set_name("index.json");
  of.mutable_index()->set_fd_index(2);
  of.mutable_grouping()->set_rule(pb::Grouping::RULE_EXPLICIT);
  auto& group = *of.mutable_grouping()->add_groups();
  group.set_name("g");
  for (const char* name : {"both", "h.1.w", "e", "z", "q"}) {
    group.add_tensors(name);
  }
  auto& joined = *of.add_joined();
  joined.set_name("both");
  joined.add_shape(512);
  auto& part = *joined.add_parts();
  part.set_tensor("h.0.w");
  auto& other = *joined.add_parts();
  other.set_tensor("h.0.w");
  other.set_offset_bytes(0);
  other.set_size_bytes(1024);
  return message;
}

pb::ClientMessage PublishSeed() {
  pb::ClientMessage message;
  message.set_request_id(4);
  auto& of = *message.mutable_publish();
  of.set_model("m");
  of.set_deadline_ms(1000);
  of.set_readers(pb::READERS_EVERYONE);
  auto& group = *of.mutable_group();
  group.set_name("g");
  group.set_image_bytes(8192);
  for (const char* name : {"w", "tied"}) {
    auto& tensor = *group.add_tensors();
    tensor.set_name(name);
    tensor.set_dtype(pb::DTYPE_F32);
    tensor.add_shape(16);
    tensor.add_shape(32);
    tensor.add_strides(1);
    tensor.add_strides(16);
    tensor.set_offset_bytes(256);
    tensor.set_size_bytes(2048);
  }
  return message;
}

pb::ClientMessage PlanSeed() {
  pb::ClientMessage message;
  message.set_request_id(5);
  auto& of = *message.mutable_set_plan();
  of.set_model_id(1);
  of.set_budget_bytes(1 << 20);
  for (uint32_t i = 0; i < 4; ++i) of.add_order(i);
  of.set_deadline_ms(10);
  of.set_stage_deadline_ms(10);
  of.set_replaces(1);
  of.set_gives_way(true);
  of.mutable_share()->set_weight(3);
  of.mutable_share()->set_priority(-2);
  return message;
}

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  Seeds seeds = {{"register", InputOf({kFile, kFile, kFile}, RegisterSeed())},
                 {"publish", InputOf({kImage}, PublishSeed())},
                 {"plan", InputOf({}, PlanSeed())}};
  const auto add = [&](const char* name, std::initializer_list<int> kinds,
                       auto fill) {
    pb::ClientMessage message;
    message.set_request_id(1);
    fill(message);
    seeds.emplace_back(name, InputOf(kinds, message));
  };
  add("open", {}, [](pb::ClientMessage& m) {
    m.mutable_open_session()->set_client_name("a worker");
    m.mutable_open_session()->set_closes_slabs(true);
  });
  add("read_image", {kTarget}, [](pb::ClientMessage& m) {
    m.mutable_read_image()->set_model_id(1);
    m.mutable_read_image()->set_deadline_ms(5);
  });
  add("stage", {}, [](pb::ClientMessage& m) {
    m.mutable_stage()->set_model_id(1);
    m.mutable_stage()->set_deadline_ms(1);
  });
  add("prefetch", {}, [](pb::ClientMessage& m) {
    m.mutable_prefetch()->set_tier(pb::TIER_HOST);
    m.mutable_prefetch()->add_groups(3);
  });
  add("release", {},
      [](pb::ClientMessage& m) { m.mutable_release()->add_lease_ids(9); });
  add("slabs", {},
      [](pb::ClientMessage& m) { m.mutable_slabs_closed()->add_slab_ids(9); });
  add("describe", {},
      [](pb::ClientMessage& m) { m.mutable_describe_model()->set_name("m"); });
  add("find", {}, [](pb::ClientMessage& m) {
    m.mutable_find_content()->set_content(std::string(32, 'c'));
  });
  add("forget", {},
      [](pb::ClientMessage& m) { m.mutable_forget_model()->set_model_id(1); });
  add("forget_unused", {}, [](pb::ClientMessage& m) {
    m.mutable_set_order()->set_model_id(1);
    m.mutable_set_order()->set_forget(true);
  });
  add("spare", {}, [](pb::ClientMessage& m) {
    m.mutable_spare()->set_device(1);
    m.mutable_spare()->set_bytes(1 << 20);
    m.mutable_spare()->set_deadline_ms(5);
  });
  add("order", {},
      [](pb::ClientMessage& m) { m.mutable_set_order()->add_groups(1); });
  add("clear", {},
      [](pb::ClientMessage& m) { m.mutable_clear_plan()->set_plan_id(1); });
  return seeds;
}

}  // namespace fuzz
}  // namespace hoistd

// u8 descriptors, u8 kind of each, then a serialized ClientMessage.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  fuzz::Input input(data, size);
  std::vector<hoist::UniqueFd> fds;
  std::vector<int> numbers;
  for (int left = input.Take() % 5; left > 0; --left) {
    fds.push_back(NewDescriptor(input.Take() % kKinds));
    numbers.push_back(fds.back().get());
  }
  // As SessionServer has it.
  static auto* const quiet = google::protobuf::SetLogHandler(nullptr);
  (void)quiet;
  pb::ClientMessage message;
  const std::string_view body = input.Rest();
  if (message.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    Serve(message, std::move(fds));
  }
  fds.clear();
  // The engine closed what it was given, and nobody else kept any.
  for (const int fd : numbers) FUZZ_REQUIRE(fcntl(fd, F_GETFD) == -1);
  return 0;
}
