// A worker's attachment over a real hoistd on the emulated device.
#ifndef HOIST_TESTS_COMPONENT_ATTACHMENT_ATTACHMENT_RIG_H_
#define HOIST_TESTS_COMPONENT_ATTACHMENT_ATTACHMENT_RIG_H_

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "hoist/hoist_attachment.h"
#include "tests/component/plans/pattern_model.h"
#include "tests/support/real_hoistd.h"
#include "tests/support/temp_dir.h"

namespace hoistd::testing::attachment_test {

using hoist::AttachmentState;
using hoist::Code;

constexpr uint64_t kBytes = uint64_t{64} << 10;  // Of a group.
constexpr uint32_t kGroups = 8;
constexpr uint64_t kPool = uint64_t{2} << 20;  // Of one slab.
// Of device memory: half of the groups are streamed.
constexpr uint64_t kBudget = kGroups * kBytes / 2;

// A file of groups "layers.0" to "layers.7", with the pattern of `number`.
inline void WriteFiles(const std::string& path, uint64_t number) {
  std::string header = "{", bytes;
  for (uint64_t g = 0; g < kGroups; ++g) {
    header += (g > 0 ? ",\"layers." : "\"layers.") + std::to_string(g) +
              ".w\":{\"dtype\":\"U64\",\"shape\":[" +
              std::to_string(kBytes / 8) + "],\"data_offsets\":[" +
              std::to_string(g * kBytes) + "," +
              std::to_string((g + 1) * kBytes) + "]}";
    for (uint64_t i = 0; i < kBytes / 8; ++i) {
      const uint64_t word = PatternWord(number, g, i);
      bytes.append(reinterpret_cast<const char*>(&word), sizeof(word));
    }
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << bytes;
}

// As PublishPattern, in this order of groups of `bytes`, under any name.
inline hoist::Result<hoist::Model> PublishAs(
    hoist::Session& session, const std::string& name, uint64_t number,
    const std::vector<uint32_t>& groups, uint64_t bytes = kBytes) {
  hoist::Result<hoist::Model> model =
      hoist::Status(Code::kInvalidArgument, "no groups");
  for (const uint32_t g : groups) {
    std::vector<uint64_t> words(bytes / 8);
    for (uint64_t i = 0; i < words.size(); ++i) {
      words[i] = PatternWord(number, g, i);
    }
    hoist::PublishOptions options;
    options.model = name;
    options.group = "g" + std::to_string(g);
    options.tensors = {{"w",
                        hoist::DType::kU64,
                        {static_cast<int64_t>(words.size())},
                        words.data()}};
    model = session.Publish(options);
    if (!model.ok()) return model;
  }
  return model;
}

inline std::vector<uint32_t> Ascending() {
  std::vector<uint32_t> groups(kGroups);
  for (uint32_t g = 0; g < kGroups; ++g) groups[g] = g;
  return groups;
}
inline std::vector<uint32_t> Descending() {
  std::vector<uint32_t> groups = Ascending();
  std::reverse(groups.begin(), groups.end());
  return groups;
}

class AttachmentTest : public ::testing::Test {
 protected:
  void StartHoistd(const RealHoistdOptions& options = {}) {
    hoistd_ = std::make_unique<RealHoistd>(HOISTD_BINARY, options);
    WriteFiles(path_, 1);
    ASSERT_TRUE(hoistd_->Connect().ok()) << hoistd_->Log();
  }
  void Restart() {
    hoistd_->Kill();
    hoistd_->Start();
  }
  // Until its end is known here, what it staged before is used.
  void KillAndSee() {
    hoistd_->Kill();
    while (attachment_->state() == AttachmentState::kReady) {
    }
  }

  // From the files, in half of the memory.
  hoist::AttachmentOptions Options() {
    hoist::RegisterOptions files;
    files.name = "files";
    files.path = path_;
    hoist::AttachmentOptions options = {std::move(files)};
    options.connect.connect_deadline = std::chrono::seconds(30);
    options.plan.budget_bytes = kBudget;
    options.plan.order = Ascending();
    options.plan.deadline = std::chrono::seconds(10);
    options.renew_deadline = std::chrono::seconds(30);
    return options;
  }
  hoist::Status Attach(hoist::AttachmentOptions options) {
    options.connect.socket_path = hoistd_->socket();
    attachment_.reset();
    auto made = hoist::Attachment::Create(options);
    if (made.ok()) attachment_.emplace(std::move(*made));
    return made.status();
  }
  hoist::Status Attach() { return Attach(Options()); }
  hoist::Status AttachTo(const std::string& name) {
    hoist::AttachmentOptions options = Options();
    options.source = name;
    return Attach(std::move(options));
  }

  const void* Stage(uint32_t group) {
    const auto data = attachment_->Stage(group);
    EXPECT_TRUE(data.ok()) << data.status().message();
    return data.ok() ? *data : nullptr;
  }
  hoist::Status Done(uint32_t group) { return attachment_->Done(group); }
  hoist::Status Check() { return attachment_->Check(); }
  hoist::Status Renew() { return attachment_->Renew(); }
  hoist_attachment_info Info() { return attachment_->Describe(); }
  hoist_plan_info PlanInfo() { return attachment_->info(); }

  // One group of the first model's number; it holds the pattern of `is`.
  hoist::Status Use(uint32_t group, uint32_t is,
                    std::chrono::milliseconds turn = {}) {
    const auto data = attachment_->Stage(group, nullptr, turn);
    if (!data.ok()) return data.status();
    EXPECT_EQ(WrongWords(*data, 1, is, kBytes), 0u) << "group " << group;
    return Done(group);
  }
  void ExpectPass(const std::vector<uint32_t>& order = Ascending()) {
    for (const uint32_t group : order) {
      const hoist::Status used = Use(group, group);
      ASSERT_TRUE(used.ok()) << used.message() << hoistd_->Log();
    }
    EXPECT_TRUE(attachment_->EndPass().ok());
    EXPECT_TRUE(Check().ok());
  }
  bool Readable() {
    pollfd one = {attachment_->event_fd(), POLLIN, 0};
    return poll(&one, 1, 30'000) == 1;
  }
  void ReadEvent() {
    uint64_t count = 0;
    EXPECT_EQ(read(attachment_->event_fd(), &count, 8), 8);
  }

  const TempDir folder_;
  const std::string path_ = folder_ / "model.safetensors";
  std::unique_ptr<RealHoistd> hoistd_;
  std::optional<hoist::Attachment> attachment_;
};

}  // namespace hoistd::testing::attachment_test

#endif  // HOIST_TESTS_COMPONENT_ATTACHMENT_ATTACHMENT_RIG_H_
