// A plan's lane whose client writes what it likes, where it likes, between any
// two steps of hoistd: only its own plan may suffer.
#include <deque>
#include <map>
#include <set>

#include "daemon/stream/lane.h"
#include "hoist/shared/lane_layout.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/fake_device.h"

namespace hoistd {
namespace {

namespace lane = hoist::lane;

constexpr uint64_t kImage = 3000;  // Of the first group; others are larger.
constexpr uint64_t kRingAt = 1 << 20;
constexpr uint64_t kHostApart = 8192;
constexpr uint64_t kSteps = 512;

// The plan's shape: groups in the places of a ring, in some order.
LaneSpec TakeSpec(fuzz::Input& input) {
  LaneSpec spec;
  spec.plan = PlanId(1);
  const uint32_t groups = 1 + input.Take() % 6;
  const uint64_t places = 1 + input.Take() % 3;
  for (uint32_t g = 0; g < groups; ++g) {
    const uint64_t at = g % places * kHostApart;
    const uint64_t bytes = kImage + g * 500;
    spec.groups.push_back({{at, bytes}, kRingAt + at, bytes});
    spec.order.push_back(g);
  }
  for (int more = input.Take() % 4; more > 0; --more) {
    spec.order.push_back(input.Take() % groups);
  }
  return spec;
}

class Rig {
 public:
  explicit Rig(LaneSpec spec)
      : spec_(std::move(spec)),
        host_(spec_.groups.size() * kHostApart),
        given_(spec_.groups.size()) {
    events_.host_used = [this](PlanId, LaneGroup group, absl::Duration) {
      FUZZ_REQUIRE(given_.at(group));
      given_[group] = false;
    };
    events_.host_returned = [this](PlanId, LaneGroup group) {
      FUZZ_REQUIRE(given_.at(group));
      given_[group] = false;
    };
    events_.host_wanted = [this](PlanId, LaneGroup group) {
      FUZZ_REQUIRE(group < given_.size() && !given_[group]);
    };
    events_.faulted = [this](PlanId, absl::Status why) {
      FUZZ_REQUIRE(!why.ok() && !faulted_);
      faulted_ = true;
    };
    auto memory =
        LaneMemory::Create(device_, static_cast<uint32_t>(spec_.groups.size()),
                           static_cast<uint32_t>(spec_.order.size()));
    FUZZ_REQUIRE(memory.ok());
    Lane::Parts parts;
    parts.host = host_;
    parts.events = &events_;
    parts.board = &board_;
    lane_.emplace(spec_, *std::move(memory), parts);
    for (uint32_t g = 0; g < given_.size(); ++g) GiveHost(g, false);
  }
  ~Rig() {
    lane_->Close();
    while (!under_way_.empty()) End();
    FUZZ_REQUIRE(lane_->quiet(false) && !lane_->HasPiece());
  }

  void Step(fuzz::Input& input) {
    switch (input.Take() % 9) {
      case 0:
        return WriteAnywhere(input);
      case 1:
        return WriteWord(input);
      case 2:
        return Ask(input);
      case 3:
        return TakePiece(input.Take<uint16_t>());
      case 4:
        if (!under_way_.empty()) End();
        return;
      case 5:
        return GiveHost(input.Take() % given_.size(), true);
      case 6:
        lane_->TakeBack(input.Take() % given_.size());
        return;
      case 7:
        return Behave(input);
      default:
        return Look(absl::Microseconds(input.Take<uint32_t>()));
    }
  }

 private:
  struct Piece {
    std::set<LaneGroup> groups;
    std::vector<WordWrite> words;
  };

  lane::Header& header() { return lane_->memory().header(); }
  lane::GroupWords& group(uint32_t g) {
    return lane_->memory().group(g % given_.size());
  }
  std::byte* base() { return reinterpret_cast<std::byte*>(&header()); }
  size_t bytes() const { return lane::LaneBytes(given_.size()); }

  void WriteAnywhere(fuzz::Input& input) {
    const size_t at = input.Take<uint16_t>() * size_t{4} % bytes();
    reinterpret_cast<lane::Word*>(base() + at)->store(input.Take<uint32_t>());
  }
  // The words that hoistd looks at.
  void WriteWord(fuzz::Input& input) {
    const uint8_t which = input.Take();
    const auto value = static_cast<uint32_t>(input.Take<int16_t>());
    lane::GroupWords& words = group(which >> 3);
    lane::Word* const all[] = {
        &header().cursor, &header().head,   &header().want, &header().tail,
        &words.done,      &words.done_flag, &words.flag,    &words.ready};
    all[which & 7]->store(value);
  }
  void Ask(fuzz::Input& input) {
    lane::Request request = {};
    request.kind = input.Take() % 4;
    const uint8_t wide = input.Take();
    request.from = wide & 1 ? input.Take<uint64_t>() : input.Take();
    request.to = wide & 2 ? input.Take<uint64_t>() : input.Take();
    const uint32_t made = header().head.load();
    std::memcpy(base() + lane::RequestsOffset(given_.size()) +
                    made % lane::kRequests * sizeof(request),
                &request, sizeof(request));
    header().head.store(made + 1);
  }
  // As libhoist does: the next position is staged, and those before are done.
  void Behave(fuzz::Input& input) {
    const uint32_t next = header().cursor.load();
    if (input.Take() % 2 == 0) {
      header().cursor.store(next + 1);
    } else if (next > 0) {
      group(spec_.order[(next - 1) % spec_.order.size()]).done.store(next);
    }
  }

  void GiveHost(LaneGroup g, bool once) {
    if (given_[g]) return;
    given_[g] = true;
    // In two pieces, as a host pool in pieces has it.
    const uint64_t first = spec_.groups[g].bytes / 2;
    lane_->HostReady(
        g,
        {{g * kHostApart, 0, first},
         {g * kHostApart + first + 64, first, spec_.groups[g].bytes - first}},
        once);
  }

  void Look(absl::Duration passed) {
    now_ += passed;
    lane_->Look(now_);
    FUZZ_REQUIRE(lane_->deadline() > now_ || faulted_);
    (void)lane_->quiet(input_held_back_ = !input_held_back_);
  }

  void TakePiece(uint16_t at_most) {
    if (!lane_->HasPiece()) return;
    FUZZ_REQUIRE(!faulted_);
    const uint64_t most = uint64_t{1} + at_most;
    const LinkPiece piece = lane_->TakePiece(most);
    Piece taken;
    uint64_t sum = 0;
    FUZZ_REQUIRE(!piece.rows.empty());
    for (const HostRows& rows : piece.rows) {
      sum += rows.bytes();
      for (uint64_t i = 0; i < rows.count; ++i) {
        taken.groups.insert(
            GroupOf({rows.to_offset + i * rows.first.size(), rows.row(i)}));
      }
    }
    FUZZ_REQUIRE(sum == piece.bytes && sum <= most);
    for (const WordWrite& word : piece.words) {
      const auto* at = reinterpret_cast<std::byte*>(word.word);
      FUZZ_REQUIRE(at >= base() + lane::GroupsOffset() &&
                   at < base() + lane::RequestsOffset(given_.size()));
    }
    taken.words = piece.words;
    // What is being copied is not copied over.
    for (const Piece& other : under_way_) RequireApart(taken, other);
    RequireApart(taken, taken);
    under_way_.push_back(std::move(taken));
  }

  // Whose bytes these are: read from where they were given, to its own slot.
  LaneGroup GroupOf(const HostRun& run) const {
    FUZZ_REQUIRE(!run.from.empty() && run.from.data() >= host_.data());
    const auto from = static_cast<uint64_t>(run.from.data() - host_.data());
    const auto g = static_cast<LaneGroup>(from / kHostApart);
    FUZZ_REQUIRE(g < given_.size() && given_[g]);
    const LaneSpec::Streamed& at = spec_.groups[g];
    uint64_t image = from % kHostApart;
    uint64_t end = at.bytes / 2;
    if (image >= end + 64) {
      image -= 64;
      end = at.bytes;
    }
    FUZZ_REQUIRE(image < end && run.from.size() <= end - image);
    FUZZ_REQUIRE(run.to_offset == at.device_offset + image);
    return g;
  }
  void RequireApart(const Piece& one, const Piece& other) const {
    for (const LaneGroup a : one.groups) {
      for (const LaneGroup b : other.groups) {
        FUZZ_REQUIRE(a == b ||
                     !spec_.groups[a].slot.Overlaps(spec_.groups[b].slot));
      }
    }
  }

  void End() {
    for (const WordWrite& word : under_way_.front().words) {
      word.word->store(word.value);
    }
    under_way_.pop_front();
    lane_->Ended(absl::OkStatus(), now_);
  }

  const LaneSpec spec_;
  testing::FakeDevice device_{{}};
  std::vector<std::byte> host_;
  std::vector<bool> given_;  // Its bytes may be read.
  bool faulted_ = false;
  bool input_held_back_ = false;
  StreamerEvents events_;
  LaneBoard board_;
  std::deque<Piece> under_way_;
  absl::Time now_ = absl::UnixEpoch();
  std::optional<Lane> lane_;
};

}  // namespace

namespace fuzz {

Seeds MakeSeeds() {
  const auto head = [](Output& out, int groups, int places) {
    out.Put(static_cast<uint8_t>(groups - 1))
        .Put(static_cast<uint8_t>(places - 1))
        .Put(uint8_t{0});
  };
  const auto look = [](Output& out) { out.Put(uint8_t{8}).Put(uint32_t{10}); };
  Output good;
  head(good, 4, 2);
  for (int i = 0; i < 12; ++i) {
    look(good);
    good.Put(uint8_t{3}).Put(uint16_t{60000}).Put(uint8_t{4});
    good.Put(uint8_t{7}).Put(uint8_t{0});
    good.Put(uint8_t{7}).Put(uint8_t{1});
  }
  Output captured;
  head(captured, 3, 2);
  captured.Put(uint8_t{2}).Put(uint8_t{2}).Put(uint8_t{0}).Put(uint16_t{0});
  for (uint8_t i = 0; i < 6; ++i) {
    look(captured);
    captured.Put(uint8_t{3}).Put(uint16_t{2000}).Put(uint8_t{4});
    captured.Put(uint8_t{1}).Put(uint8_t{2}).Put(int16_t(i % 4));
    captured.Put(uint8_t{1}).Put(uint8_t(5 + 8 * i)).Put(int16_t{1});
  }
  Output skips;
  head(skips, 4, 2);
  skips.Put(uint8_t{2}).Put(uint8_t{1}).Put(uint8_t{0});
  skips.Put(uint8_t{0}).Put(uint8_t{3});
  look(skips);
  skips.Put(uint8_t{5}).Put(uint8_t{1}).Put(uint8_t{6}).Put(uint8_t{1});
  look(skips);
  skips.Put(uint8_t{0}).Put(uint16_t{17}).Put(uint32_t{300});
  look(skips);
  return {{"good", good.str()},
          {"captured", captured.str()},
          {"skips", skips.str()}};
}

}  // namespace fuzz
}  // namespace hoistd

// The plan (TakeSpec), then steps of the client, the link and the engine.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hoistd;
  static const bool quiet = [] {
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  (void)quiet;
  fuzz::Input input(data, size);
  Rig rig(TakeSpec(input));
  for (uint64_t i = 0; i < kSteps && !input.empty(); ++i) rig.Step(input);
  return 0;
}
