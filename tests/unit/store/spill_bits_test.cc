// Bits flip in segment headers, in reasons and in the roll of models, one at a
// time: a start must come about, and what it lists be what was put, or be
// named.
#include <stdlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/store/description.h"
#include "daemon/store/segment_header.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/spill_fixture.h"

namespace hoistd::spill_bits_test {

using ::hoistd::testing::CheckSpilled;
using ::hoistd::testing::PutAndWait;
using ::hoistd::testing::RemoveAndWait;
using ::hoistd::testing::SameImage;
using ::hoistd::testing::SpillImage;
using ::hoistd::testing::SpillTest;
using ::testing::IsEmpty;

// A directory's files and their bytes.
using Snapshot = std::map<std::string, std::string>;

Snapshot SnapshotOf(const std::string& dir) {
  Snapshot files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(dir)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[std::filesystem::relative(entry.path(), dir)] =
        std::string(std::istreambuf_iterator<char>(file), {});
  }
  return files;
}

// Where in a file of `bytes` to flip: every bit of the first `dense` bytes,
// and `sparse` more from there to the end.
std::vector<uint64_t> BitsOf(uint64_t bytes, uint64_t dense, uint64_t sparse) {
  std::vector<uint64_t> bits;
  for (uint64_t bit = 0; bit < dense * 8; ++bit) bits.push_back(bit);
  for (uint64_t i = 0; i < sparse; ++i) {
    const uint64_t byte = dense + i * (bytes - dense) / sparse;
    bits.push_back(byte * 8 + i % 8);
  }
  return bits;
}

class SpillBitsTest : public SpillTest {
 protected:
  struct Outcome {
    uint64_t stopped = 0;   // Open has failed.
    uint64_t silent = 0;    // Something else is listed, or less, and not named.
    uint64_t wrong = 0;     // Other bytes are served.
    uint64_t unusable = 0;  // It cannot be written to.
    uint64_t said = 0;      // There are notes.
  };

  void SetUp() override {
    // In memory, since each start syncs.
    char shm[] = "/dev/shm/hoist-XXXXXX";
    if (mkdtemp(shm) != nullptr) shm_ = shm;
    if (!shm_.empty()) dir_ = shm_ + "/spill";
  }
  void TearDown() override {
    if (!shm_.empty()) std::filesystem::remove_all(shm_);
  }

  SpillImage Image(uint64_t seed) {
    SpillImage image(1 + seed % 3, seed);
    SpillMeta meta = *image.meta;
    meta.model = absl::StrCat("model-", seed / 3);
    meta.group.name = absl::StrCat("layers.", seed);
    for (uint64_t i = 0; i < 40; ++i) {
      meta.group.tensors.push_back(
          {.name = absl::StrCat("layers.", seed, ".block.", i, ".weight"),
           .dtype = hoist::DType::kF32,
           .shape = {static_cast<int64_t>(i), 4},
           .offset = i * 64,
           .bytes = i * 16});
    }
    image.meta = std::make_shared<const SpillMeta>(std::move(meta));
    return image;
  }
  // Leaves models with several groups, one of them in quarantine, and one
  // that was removed.
  void MakeStore() {
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      images_.push_back(Image(seed));
      ASSERT_OK(PutAndWait(*store, images_.back()));
    }
    std::filesystem::resize_file(Path(SpillId(2)), 4096);
    ASSERT_FALSE(CheckSpilled(*store, SpillId(2), images_[1]).ok());
    ASSERT_OK(RemoveAndWait(*store, SpillId(4)));
    store->NoteModel(User(7), "model-1", 5);
    before_ = store->List();
    store.reset();
    files_ = SnapshotOf(dir_);
  }
  void Restore(const std::string& flipped, uint64_t bit) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_ + "/images");
    std::filesystem::create_directories(dir_ + "/quarantine");
    std::filesystem::create_directories(dir_ + "/models");
    for (const auto& [name, bytes] : files_) {
      std::ofstream file(dir_ + "/" + name, std::ios::binary);
      if (name != flipped) {
        file << bytes;
        continue;
      }
      std::string other = bytes;
      other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
      file << other;
    }
  }
  static bool Names(const SpillStore& store, SpillId id) {
    for (const std::string& note : store.notes()) {
      for (const char* after : {" ", ":", ","}) {
        if (absl::StrContains(note,
                              absl::StrCat("image ", id.number(), after))) {
          return true;
        }
      }
    }
    return false;
  }
  // Whether all that `store` lists is as it was, or named.
  bool IsHonest(const SpillStore& store) {
    std::map<SpillId, SpillRecord> now;
    for (SpillRecord& record : store.List()) {
      now.emplace(record.id, std::move(record));
    }
    bool honest = true;
    for (const SpillRecord& was : before_) {
      const auto is = now.find(was.id);
      if (is == now.end()) {
        honest = honest && Names(store, was.id);
        continue;
      }
      honest = honest && SameImage(was, is->second);
      if (was.quarantined != is->second.quarantined) {
        // Another reason is one thing; none at all would be served.
        honest =
            honest && !is->second.quarantined.empty() && Names(store, was.id);
      }
      now.erase(is);
    }
    for (const auto& [id, record] : now) {
      honest = honest && !record.quarantined.empty() && Names(store, id);
    }
    return honest;
  }
  // Whether an image can be put and removed.
  bool IsUsable(SpillStore& store) {
    const auto id = PutAndWait(store, images_[0]);
    EXPECT_OK(id);
    if (!id.ok()) return false;
    const absl::Status removed = RemoveAndWait(store, *id);
    EXPECT_OK(removed);
    return removed.ok();
  }
  Outcome FlipAll(const std::string& name, const std::vector<uint64_t>& bits) {
    Outcome outcome;
    for (const uint64_t bit : bits) {
      Restore(name, bit);
      // The first start leaves it in order for the next: an eighth tries that,
      // and whether it can be used; sanitizers make it slow.
      const bool tries_all = bit % 16 < 2;
      for (int start = 0; start < (tries_all ? 2 : 1); ++start) {
        auto store = Open();
        if (!store.ok()) {
          ++outcome.stopped;
          ADD_FAILURE() << "bit " << bit << ": " << store.status();
          break;
        }
        // The first start says what there was; the next has less to say.
        if (start == 0 && !IsHonest(**store)) {
          ++outcome.silent;
          ADD_FAILURE() << "bit " << bit << " is silent";
          break;
        }
        if (start == 0) outcome.said += !(*store)->notes().empty();
        if (!tries_all) continue;
        for (const SpillRecord& record : (*store)->List()) {
          const absl::Status got =
              CheckSpilled(**store, record.id, images_[record.id.number() - 1]);
          if (got.ok() || absl::IsDataLoss(got)) continue;
          ++outcome.wrong;
          ADD_FAILURE() << "bit " << bit << ": " << got;
        }
        if (start == 0 && !IsUsable(**store)) ++outcome.unusable;
      }
    }
    return outcome;
  }
  void ExpectNothingSilent(const Outcome& outcome, uint64_t flips) {
    EXPECT_EQ(outcome.stopped, 0u);
    EXPECT_EQ(outcome.silent, 0u);
    EXPECT_EQ(outcome.wrong, 0u);
    EXPECT_EQ(outcome.unusable, 0u);
    RecordProperty("flips", static_cast<int>(flips));
    RecordProperty("said", static_cast<int>(outcome.said));
    printf("%d flips: %d said, the others changed nothing\n",
           static_cast<int>(flips), static_cast<int>(outcome.said));
  }

  std::string shm_;
  Snapshot files_;
  std::vector<SpillImage> images_;
  std::vector<SpillRecord> before_;
};

TEST_F(SpillBitsTest, OfASegmentHeaderAreFound) {
  MakeStore();
  const uint64_t bytes = SegmentHeaderBytes(images_[2].image.size(),
                                            DescriptionBytes(*images_[2].meta));
  ASSERT_EQ(bytes, 4096u);
  const auto bits = BitsOf(bytes, 96, 400);
  const Outcome outcome = FlipAll("images/3.img", bits);
  ExpectNothingSilent(outcome, bits.size());
  EXPECT_EQ(outcome.said, bits.size());
}

TEST_F(SpillBitsTest, OfAHeaderInQuarantineAreFound) {
  MakeStore();
  const auto bits = BitsOf(4096, 64, 100);
  const Outcome outcome = FlipAll("quarantine/2.img", bits);
  ExpectNothingSilent(outcome, bits.size());
  EXPECT_EQ(outcome.said, bits.size());
}

TEST_F(SpillBitsTest, OfAReasonLeaveItsImageInQuarantine) {
  MakeStore();
  const uint64_t bytes = files_["quarantine/2.why"].size();
  ASSERT_GT(bytes, 10u);
  for (const uint64_t bit : BitsOf(bytes, bytes, 0)) {
    Restore("quarantine/2.why", bit);
    ASSERT_OK_AND_ASSIGN(auto store, Open());
    const auto now = store->List();
    ASSERT_EQ(now.size(), before_.size());
    EXPECT_TRUE(SameImage(now[1], before_[1]));
    EXPECT_NE(now[1].quarantined, "") << "bit " << bit;
  }
}

TEST_F(SpillBitsTest, OfTheRollOfModelsAreFound) {
  MakeStore();
  const auto roll = files_.lower_bound("models/");
  ASSERT_NE(roll, files_.end());
  const auto bits = BitsOf(roll->second.size(), roll->second.size(), 0);
  const Outcome outcome = FlipAll(roll->first, bits);
  ExpectNothingSilent(outcome, bits.size());
  EXPECT_EQ(outcome.said, bits.size());
}

TEST_F(SpillBitsTest, NoneFlippedIsNothingSaid) {
  MakeStore();
  Restore("", 0);
  ASSERT_OK_AND_ASSIGN(auto store, Open());
  EXPECT_THAT(store->notes(), IsEmpty());
  EXPECT_TRUE(IsHonest(*store));
  EXPECT_EQ(store->models().size(), 1u);
}

}  // namespace hoistd::spill_bits_test
