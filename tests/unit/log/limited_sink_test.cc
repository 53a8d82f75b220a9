#include "daemon/log/limited_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Pass(absl::Duration duration) { now_ += duration; }

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// "[level] text (file:line)" of all that comes through.
class Written final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> Take() { return std::exchange(lines_, {}); }
  const std::vector<spdlog::source_loc>& places() const { return places_; }
  int flushes() const { return flushes_; }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const auto level = spdlog::level::to_string_view(message.level);
    lines_.push_back(absl::StrCat(
        "[", absl::string_view(level.data(), level.size()), "] ",
        absl::string_view(message.payload.data(), message.payload.size())));
    places_.push_back(message.source);
  }
  void flush_() override { ++flushes_; }

  std::vector<std::string> lines_;
  std::vector<spdlog::source_loc> places_;
  int flushes_ = 0;
};

class LimitedSinkTest : public ::testing::Test {
 protected:
  LimitedSinkTest() {
    limits_.lines = 3;
    limits_.debug_lines = 5;
    limits_.kinds = 4;
    limits_.bytes = 60;
    limits_.always = [](spdlog::level::level_enum level,
                        absl::string_view text) {
      return level == spdlog::level::info && text == "audit";
    };
    Make();
  }
  void Make() {
    sink_ = std::make_shared<LimitedSink>(written_, clock_, limits_);
    log_ = std::make_unique<spdlog::logger>("test", sink_);
    log_->set_level(spdlog::level::debug);
  }
  // Of a place in the code of its own for each `line`.
  void Say(int line, const std::string& text,
           spdlog::level::level_enum level = spdlog::level::info) {
    log_->log(spdlog::source_loc{"here.cc", line, "Say"}, level, text);
  }

  FakeClock clock_;
  LineLimits limits_;
  const std::shared_ptr<Written> written_ = std::make_shared<Written>();
  std::shared_ptr<LimitedSink> sink_;
  std::unique_ptr<spdlog::logger> log_;
};

TEST_F(LimitedSinkTest, WhatIsBeyondTheLimitIsCountedAndTold) {
  for (int i = 0; i < 10; ++i) Say(1, absl::StrCat("refused ", i));
  EXPECT_THAT(
      written_->Take(),
      ElementsAre("[info] refused 0", "[info] refused 1", "[info] refused 2"));
  clock_.Pass(absl::Seconds(29));
  Say(1, "refused 10");
  sink_->flush();
  EXPECT_THAT(written_->Take(), IsEmpty());
  clock_.Pass(absl::Seconds(1));
  Say(1, "refused 11");
  EXPECT_THAT(written_->Take(),
              ElementsAre("[info] 8 more lines like this in the last 30 s: "
                          "refused 10",
                          "[info] refused 11"));
  // A new window, with nothing left out: nothing is told of it.
  clock_.Pass(absl::Seconds(31));
  sink_->flush();
  EXPECT_THAT(written_->Take(), IsEmpty());
}

TEST_F(LimitedSinkTest, AFlushOrAnotherKindTellsThatTheWindowHasEnded) {
  for (int i = 0; i < 5; ++i) Say(1, "one");
  for (int i = 0; i < 4; ++i) Say(2, "other");
  written_->Take();
  clock_.Pass(absl::Seconds(45));
  sink_->flush();
  EXPECT_THAT(written_->Take(),
              ElementsAre("[info] 2 more lines like this in the last 45 s: one",
                          "[info] 1 more line like this in the last 45 s: "
                          "other"));
  EXPECT_GE(written_->flushes(), 1);
  for (int i = 0; i < 4; ++i) Say(1, "one");
  written_->Take();
  clock_.Pass(absl::Seconds(30));
  Say(3, "third");
  EXPECT_THAT(written_->Take(),
              ElementsAre(HasSubstr("1 more line"), "[info] third"));
}

TEST_F(LimitedSinkTest, KindsHaveLimitsOfTheirOwnByPlaceInTheCode) {
  for (int i = 0; i < 5; ++i) {
    Say(1, "same text");
    Say(2, "same text");
  }
  EXPECT_THAT(written_->Take(), SizeIs(6));
  EXPECT_EQ(written_->places().front().line, 1);
}

TEST_F(LimitedSinkTest, WithoutAPlaceAKindIsTheTextUpToTheFirstDigit) {
  for (int i = 0; i < 5; ++i) {
    log_->info("session {} opened", i);
    log_->info("plan {} opened", i);
  }
  EXPECT_THAT(written_->Take(), SizeIs(6));
}

TEST_F(LimitedSinkTest, WhoAsksForDebugLinesGetsMore) {
  for (int i = 0; i < 10; ++i) Say(1, "detail", spdlog::level::debug);
  EXPECT_THAT(written_->Take(), SizeIs(5));
}

TEST_F(LimitedSinkTest, TheWorstLevelIsTold) {
  for (int i = 0; i < 3; ++i) Say(1, "text");
  Say(1, "broken", spdlog::level::err);
  Say(1, "text");
  written_->Take();
  sink_->TellLeftOut();
  EXPECT_THAT(written_->Take(), ElementsAre("[error] 2 more lines like this in "
                                            "the last 0 s: text"));
  EXPECT_EQ(written_->places().back().line, 1);
}

TEST_F(LimitedSinkTest, WhatMustBeWrittenAlwaysIs) {
  for (int i = 0; i < 10; ++i) Say(1, "audit");
  EXPECT_THAT(written_->Take(), SizeIs(10));
  for (int i = 0; i < 10; ++i) Say(1, "audit", spdlog::level::warn);
  EXPECT_THAT(written_->Take(), SizeIs(3));
}

TEST_F(LimitedSinkTest, ManyKindsTakeNoMoreMemoryAndAreOne) {
  for (int i = 0; i < 100; ++i) Say(i, absl::StrCat("kind ", i));
  // Four kinds, and three lines of all the others.
  EXPECT_THAT(written_->Take(), SizeIs(7));
  sink_->TellLeftOut();
  EXPECT_THAT(written_->Take(),
              ElementsAre(HasSubstr("93 more lines like this")));
  // Kinds whose windows have ended make room.
  for (int i = 200; i < 204; ++i) Say(i, "new");
  EXPECT_THAT(written_->Take(), SizeIs(4));
}

TEST_F(LimitedSinkTest, ItsEndTellsWhatWasLeftOut) {
  for (int i = 0; i < 7; ++i) Say(1, "text");
  written_->Take();
  log_.reset();
  sink_.reset();
  EXPECT_THAT(written_->Take(), ElementsAre(HasSubstr("4 more lines")));
}

TEST_F(LimitedSinkTest, ALineStaysALineAndIsCut) {
  Say(1, "a\nhoistd: audit: act=evict \x1b[31m\r\x7f");
  Say(2, std::string(100, 'x'));
  Say(3, "gr\u00fc\u00dfe \"quoted\" \\");
  EXPECT_THAT(written_->Take(),
              ElementsAre("[info] a\\nhoistd: audit: act=evict \\x1b[31m\\x0d"
                          "\\x7f",
                          absl::StrCat("[info] ", std::string(60, 'x'), "..."),
                          "[info] gr\u00fc\u00dfe \"quoted\" \\"));
}

TEST(OneLogLine, CutsNoLetterInTwo) {
  std::string text(9, 'x');
  text += "\u00fc\u00fc";
  EXPECT_EQ(OneLogLine(text, 10), std::string(9, 'x') + "...");
  EXPECT_EQ(OneLogLine("", 10), "");
  EXPECT_EQ(OneLogLine("0123456789", 10), "0123456789");
}

TEST_F(LimitedSinkTest, ManyThreadsLoseNoLine) {
  constexpr int kThreads = 8, kLines = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kLines; ++i) Say(1, "text");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(written_->Take(), SizeIs(3));
  sink_->TellLeftOut();
  EXPECT_THAT(written_->Take(), ElementsAre(HasSubstr(absl::StrCat(
                                    kThreads * kLines - 3, " more lines"))));
}

}  // namespace
}  // namespace hoistd
