// A lane as libhoist maps it, whatever hoistd sends for one: refused, or read
// within its memory alone; and a plan over it, whose words hoistd changes as it
// likes between any two calls.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "client/src/device/stream_order.h"
#include "client/src/plan/lane_view.h"
#include "client/src/plan/plan_lane.h"
#include "hoist/shared/lane_layout.h"
#include "tests/fuzz/fuzz.h"

namespace hoist {
namespace {

using hoistd::fuzz::Input;
using hoistd::fuzz::Output;

constexpr uint64_t kSteps = 256;

// Takes note of nothing, and holds each word against the memory that was
// registered.
class CheckedOrder final : public StreamOrder {
 public:
  explicit CheckedOrder(bool on_cpu) : on_cpu_(on_cpu) {}

  Status Register(std::span<std::byte> memory) override {
    FUZZ_REQUIRE(memory_.empty() && !memory.empty());
    memory_ = memory;
    return Status();
  }
  void Unregister(std::span<std::byte> memory) override {
    FUZZ_REQUIRE(memory.data() == memory_.data());
    memory_ = {};
  }
  bool on_cpu() const override { return on_cpu_; }
  bool one_at_a_time() const override { return false; }
  Result<bool> IsCapturing(cuda::Stream stream) override {
    return !on_cpu_ && stream != nullptr;
  }
  Status Put(cuda::Stream, std::span<const WordOp> ops) override {
    FUZZ_REQUIRE(!ops.empty() && ops.size() <= kMaxOps);
    for (const WordOp& op : ops) {
      const auto* at = reinterpret_cast<const std::byte*>(op.word);
      FUZZ_REQUIRE(at >= memory_.data() &&
                   at + sizeof(lane::Word) <= memory_.data() + memory_.size());
      // A word that is fixed, or hoistd's alone, is nobody's to write.
      FUZZ_REQUIRE(at >= memory_.data() + offsetof(lane::Header, cursor));
      if (op.kind == WordOp::Kind::kWrite) op.word->store(op.value);
    }
    return Status();
  }
  Status After(cuda::Stream, cuda::Stream) override { return Status(); }
  Status Synchronize(cuda::Stream) override { return Status(); }
  Status SynchronizeAll() override { return Status(); }

 private:
  const bool on_cpu_;
  std::span<std::byte> memory_;
};

// What came with the plan, and what came for its lane.
struct Sent {
  uint32_t groups = 0;
  std::vector<uint32_t> order;
  UniqueFd memory;
};

// As hoistd makes one, but for what the input changes.
Sent TakeSent(Input& input) {
  Sent sent;
  sent.groups = 1 + input.Take() % 5;
  for (uint32_t g = 0; g < sent.groups; ++g) sent.order.push_back(g);
  for (int more = input.Take() % 4; more > 0; --more) {
    sent.order.push_back(input.Take() % sent.groups);
  }
  const uint8_t how = input.Take();
  if (how % 8 == 7) {
    sent.memory = UniqueFd(eventfd(0, EFD_CLOEXEC));
    return sent;
  }
  sent.memory = UniqueFd(memfd_create("lane", MFD_ALLOW_SEALING | MFD_CLOEXEC));
  std::vector<std::byte> bytes(lane::LaneBytes(sent.groups));
  lane::Header header = {};
  header.magic = lane::kMagic;
  header.version = lane::kVersion;
  header.bytes = bytes.size();
  header.groups = sent.groups;
  header.order_length = static_cast<uint32_t>(sent.order.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  for (int changes = input.Take() % 8; changes > 0; --changes) {
    const size_t at = input.Take<uint16_t>() % bytes.size();
    const std::string_view now = input.Bytes(1 + input.Take() % 8);
    std::memcpy(bytes.data() + at, now.data(),
                std::min(now.size(), bytes.size() - at));
  }
  if (how & 8) bytes.resize(input.Take<uint16_t>() % (bytes.size() + 1));
  if (how & 16) bytes.resize(bytes.size() + input.Take<uint16_t>());
  FUZZ_REQUIRE(write(sent.memory.get(), bytes.data(), bytes.size()) ==
               static_cast<ssize_t>(bytes.size()));
  int seals = how & 32 ? 0 : F_SEAL_SHRINK;
  if (how & 64) seals |= F_SEAL_WRITE;
  FUZZ_REQUIRE(fcntl(sent.memory.get(), F_ADD_SEALS, seals) == 0);
  return sent;
}

void RequireFaultInside(const Status& fault, bool faulted) {
  if (!faulted) return;
  FUZZ_REQUIRE(!fault.ok() && !fault.message().empty());
  FUZZ_REQUIRE(fault.code() <= Code::kUnauthenticated);
  FUZZ_REQUIRE(fault.message().size() <= lane::kMaxFaultText);
}

// Maps it as the plan would, and walks all that there is to see.
bool Walk(const Sent& sent) {
  const auto length = static_cast<uint32_t>(sent.order.size());
  Result<LaneView> view = LaneView::Map(sent.memory, sent.groups, length);
  if (!view.ok()) {
    FUZZ_REQUIRE(!view.status().message().empty());
    return false;
  }
  const std::span<std::byte> memory = view->memory();
  FUZZ_REQUIRE(memory.size() == lane::LaneBytes(sent.groups));
  const auto inside = [&](const auto& what) {
    const auto* at = reinterpret_cast<const std::byte*>(&what);
    return at >= memory.data() &&
           at + sizeof(what) <= memory.data() + memory.size();
  };
  FUZZ_REQUIRE(inside(view->header()) && view->groups() == sent.groups);
  uint32_t sum = 0;
  for (uint32_t g = 0; g < view->groups(); ++g) {
    FUZZ_REQUIRE(inside(view->group(g)));
    sum += view->group(g).ready.load();
  }
  for (const uint32_t number : {0u, 255u, 256u, UINT32_MAX}) {
    FUZZ_REQUIRE(inside(view->request(number)));
    sum += view->request(number).kind;
  }
  (void)sum;
  RequireFaultInside(view->Fault(), view->header().fault_code.load() != 0);
  return true;
}

// The client's calls, in the order in which a plan may make them.
class Client {
 public:
  Client(const Sent& sent, bool on_cpu) : sent_(sent), order_(on_cpu) {
    Result<Mapping> mapping =
        Mapping::OfFd(sent.memory.get(), lane::LaneBytes(sent.groups),
                      Mapping::Access::kReadWrite);
    FUZZ_REQUIRE(mapping.ok());
    hoistd_ = std::move(mapping).value();
    PlanLane::Options options;
    options.groups = sent.groups;
    options.order = sent.order;
    Result<std::unique_ptr<PlanLane>> lane = PlanLane::Create(
        sent.memory, UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        std::move(options), &order_);
    FUZZ_REQUIRE(lane.ok());
    lane_ = std::move(lane).value();
  }

  void Step(Input& input) {
    const uint8_t step = input.Take();
    const auto stream = reinterpret_cast<cuda::Stream>(uintptr_t{step} >> 7);
    switch (step % 6) {
      case 0:
        return Write(input);
      case 1:
        return Take(input.Take() % sent_.groups, stream);
      case 2:
        return Finish(stream);
      case 3:
        (void)lane_->FollowCapture(stream, turns_.empty()).ok();
        return;
      case 4:
        RequireFaultInside(lane_->Fault(), lane_->faulted());
        return;
      default:
        if (input.Take() % 8 == 0) lane_->Release();
    }
  }

 private:
  struct Staged {
    uint32_t group = 0;
    PlanLane::Turn turn;
  };

  void Write(Input& input) {
    const size_t at =
        input.Take<uint16_t>() * sizeof(lane::Word) % hoistd_.size();
    reinterpret_cast<lane::Word*>(hoistd_.data() + at)
        ->store(input.Take<uint32_t>());
  }
  void Take(uint32_t group, cuda::Stream stream) {
    const bool captured = lane_->captured();
    Result<PlanLane::Turn> turn = lane_->Take(group, stream);
    if (!turn.ok()) return;
    const size_t length = sent_.order.size();
    FUZZ_REQUIRE(sent_.order[turn->position % length] == group);
    if (captured) {
      FUZZ_REQUIRE(turn->position < length);
    } else {
      // No position twice, and no pass left out.
      FUZZ_REQUIRE(turn->position >= next_ && turn->position < next_ + length);
      next_ = turn->position + 1;
    }
    turns_.push_back({group, *turn});
  }
  void Finish(cuda::Stream stream) {
    if (turns_.empty()) return;
    const Staged staged = turns_.back();
    turns_.pop_back();
    FUZZ_REQUIRE(lane_->Join(staged.group, staged.turn, stream).ok());
    FUZZ_REQUIRE(lane_->Finish(staged.group, staged.turn, stream).ok());
  }

  const Sent& sent_;
  Mapping hoistd_;
  CheckedOrder order_;
  std::unique_ptr<PlanLane> lane_;
  std::vector<Staged> turns_;
  uint64_t next_ = 0;  // Counted form.
};

}  // namespace
}  // namespace hoist

namespace hoistd::fuzz {

Seeds MakeSeeds() {
  // Three groups, order 0 1 2 0; what changes in the lane follows.
  const auto head = [](uint8_t how, uint8_t changes) {
    Output out;
    out.Put(uint8_t{2}).Put(uint8_t{1}).Put(uint8_t{0}).Put(how).Put(changes);
    return out;
  };
  Output good = head(0, 0);
  good.Put(uint8_t{0});
  for (const uint8_t group : {0, 1, 2, 0, 2, 1}) {
    good.Put(uint8_t{0}).Put(uint16_t(256)).Put(uint32_t{1});
    good.Put(uint8_t{1}).Put(group).Put(uint8_t{2});
  }
  Output captured = head(0, 0);
  captured.Put(uint8_t{0});
  captured.Put(uint8_t{128 + 1});  // 129 % 6 == 3: a stream that is captured.
  for (const uint8_t group : {2, 0}) {
    captured.Put(uint8_t{1}).Put(group).Put(uint8_t{128 + 4});
  }
  Output full = head(0, 0);
  full.Put(uint8_t{1});
  for (int i = 0; i < 70; ++i) full.Put(uint8_t{1}).Put(uint8_t{2});
  Output faulted = head(0, 2);
  faulted.Put(uint16_t{256}).Put(uint8_t{0}).Put(uint8_t{200});
  faulted.Put(uint16_t{260}).Put(uint8_t{1}).Put(uint16_t{0x6F4E});
  faulted.Put(uint8_t{0}).Put(uint8_t{4}).Put(uint8_t{1}).Put(uint8_t{1});
  Output version = head(0, 1);
  version.Put(uint16_t{4}).Put(uint8_t{0}).Put(uint8_t{9});
  Output cut = head(8, 0);
  cut.Put(uint16_t{100});
  Output longer = head(16, 0);
  longer.Put(uint16_t{100}).Put(uint8_t{0}).Put(uint8_t{1}).Put(uint8_t{1});
  return {{"good", good.str()},
          {"captured", captured.str()},
          {"full", full.str()},
          {"faulted", faulted.str()},
          {"version", version.str()},
          {"cut", cut.str()},
          {"longer", longer.str()},
          {"unsealed", head(32, 0).str()},
          {"read_only", head(64, 0).str()},
          {"no_memfd", head(7, 0).str()}};
}

}  // namespace hoistd::fuzz

// The plan and its lane (TakeSent), then steps of the client and of hoistd.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hoist::Input input(data, size);
  const hoist::Sent sent = hoist::TakeSent(input);
  if (!hoist::Walk(sent)) return 0;
  hoist::Client client(sent, /*on_cpu=*/input.Take() % 2 == 1);
  for (uint64_t i = 0; i < hoist::kSteps && !input.empty(); ++i) {
    client.Step(input);
  }
  return 0;
}
