#include "client/ctl/trace_json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hoist::ctl::trace_json_test {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Event = v1::TraceEvent;

constexpr uint64_t kMs = 1'000'000;

class TraceJsonTest : public ::testing::Test {
 protected:
  TraceJsonTest() {
    chunk_.set_recorded_ns(1000 * kMs);
    chunk_.add_devices("a \"device\"");
    v1::TraceSession& session = *chunk_.add_sessions();
    session.set_id(12);
    session.set_client_name("w\\\x01\"\n");
    session.set_pid(71);
    v1::TraceModel& model = *chunk_.add_models();
    model.set_id(7);
    model.set_name("m");
    v1::TraceGroup& group = *chunk_.add_groups();
    group.set_model_id(7);
    group.set_group(3);
    group.set_name("layer.3\xc3\xa9");
  }

  Event& Add(Event::Kind kind, uint64_t begin_ms, uint64_t end_ms) {
    Event& event = *chunk_.add_events();
    event.set_kind(kind);
    event.set_begin_ns(begin_ms * kMs);
    event.set_duration_ns((end_ms - begin_ms) * kMs);
    event.set_session_id(12);
    event.set_model_id(7);
    event.set_group(3);
    event.set_bytes(100);
    return event;
  }
  // The whole document.
  Json Written() {
    TraceJson json;
    json.Add(chunk_);
    std::string text = json.Take();
    json.Finish();
    text += json.Take();
    slices_ = json.slices();
    Table table = LinkUse::Heading();
    for (const auto& [device, link] : json.links()) {
      link.AddRows(device, json.recorded_ns(), table);
    }
    std::ostringstream printed;
    table.Print(printed);
    links_ = printed.str();
    return Json::parse(text);
  }
  static std::vector<Json> Of(const Json& all, const std::string& phase) {
    std::vector<Json> found;
    for (const Json& one : all["traceEvents"]) {
      if (one["ph"] == phase) found.push_back(one);
    }
    return found;
  }
  // (pid, tid) -> "process/row".
  static std::map<std::pair<int, int>, std::string> Rows(const Json& all) {
    std::map<int, std::string> processes;
    std::map<std::pair<int, int>, std::string> rows;
    for (const Json& one : Of(all, "M")) {
      if (one["name"] == "process_name") {
        processes[one["pid"]] = one["args"]["name"];
      }
    }
    for (const Json& one : Of(all, "M")) {
      if (one["name"] != "thread_name") continue;
      rows[{one["pid"], one["tid"]}] =
          processes.at(one["pid"]) + "/" + std::string(one["args"]["name"]);
    }
    return rows;
  }
  static std::string RowOf(const Json& all, const Json& slice) {
    return Rows(all).at({slice["pid"], slice["tid"]});
  }

  v1::TraceChunk chunk_;
  uint64_t slices_ = 0;
  std::string links_;  // The table.
};

TEST_F(TraceJsonTest, NothingIsADocumentToo) {
  chunk_.Clear();
  const Json all = Written();
  EXPECT_TRUE(all["traceEvents"].empty());
  EXPECT_EQ(all["otherData"]["dropped_events"], 0);
}

TEST_F(TraceJsonTest, ACopyIsOnItsLinkAndWithItsPlan) {
  Event& copy = Add(Event::KIND_COPY_IN, 1, 2);
  copy.set_plan_id(5);
  copy.set_begin_ns(1'000'001);
  const Json all = Written();
  const std::vector<Json> slices = Of(all, "X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices_, 1u);
  EXPECT_EQ(RowOf(all, slices[0]), "device 0 (a \"device\")/copies");
  EXPECT_EQ(RowOf(all, slices[1]),
            "w\\\x01\"\n, pid 71 (session 12)/plan 5 copies");
  for (const Json& slice : slices) {
    EXPECT_EQ(slice["name"], "layer.3\xc3\xa9");
    EXPECT_EQ(slice["ts"], 1000.001);
    EXPECT_EQ(slice["dur"], 1000.0);
    EXPECT_EQ(slice["args"], Json::parse(R"({"model": "m", "group":
        "layer.3\u00e9", "bytes": 100, "session": 12, "plan": 5,
        "for": "a plan"})"));
  }
}

TEST_F(TraceJsonTest, WhatWorkersCopyHasRowsOfItsOwn) {
  Add(Event::KIND_GRANTED_COPY, 1, 2);
  Add(Event::KIND_OWN_READ, 1, 2);
  const Json all = Written();
  const std::vector<Json> slices = Of(all, "X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(RowOf(all, slices[0]), "device 0 (a \"device\")/workers' copies");
  EXPECT_EQ(slices[0]["name"], "granted to session 12");
  EXPECT_EQ(RowOf(all, slices[1]),
            "device 0 (a \"device\")/workers' copies back");
  EXPECT_EQ(slices[1]["name"], "read by session 12");
  EXPECT_EQ(slices[1]["cat"], "copy");
}

TEST_F(TraceJsonTest, WhatRunsAtOnceHasRowsOfItsOwn) {
  // In the order in which they end.
  Add(Event::KIND_FILE_READ, 1, 3);
  Add(Event::KIND_SPILL_READ, 0, 4);
  Add(Event::KIND_FILE_READ, 3, 5);
  Add(Event::KIND_FILE_READ, 2, 6);
  const Json all = Written();
  std::vector<std::string> rows;
  for (const Json& slice : Of(all, "X")) rows.push_back(RowOf(all, slice));
  EXPECT_THAT(rows, ::testing::ElementsAre("disk and host/disk reads",
                                           "disk and host/disk reads 2",
                                           "disk and host/disk reads",
                                           "disk and host/disk reads 3"));
}

TEST_F(TraceJsonTest, WhatHasNotEndedLastsUntilTheEnd) {
  Event& wait = Add(Event::KIND_LANE_WAIT, 100, 100);
  wait.set_plan_id(5);
  wait.set_open(true);
  Event& gap = Add(Event::KIND_LANE_GAP, 100, 100);
  gap.set_plan_id(5);
  gap.set_open(true);
  Event& over = Add(Event::KIND_LANE_GAP, 100, 300);
  over.set_plan_id(5);
  over.set_why(Event::WHY_HOST);
  const Json all = Written();
  const std::vector<Json> slices = Of(all, "X");
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0]["name"], "not on the host");
  EXPECT_FALSE(slices[0]["args"].contains("ended"));
  EXPECT_EQ(slices[1]["cat"], "wait");
  EXPECT_EQ(slices[1]["ts"], 100'000.0);
  EXPECT_EQ(slices[1]["dur"], 900'000.0);
  EXPECT_EQ(slices[1]["args"]["ended"], false);
}

TEST_F(TraceJsonTest, ALinksTimeIsCopiesGapsAndWhatIsLeft) {
  Add(Event::KIND_COPY_IN, 0, 200);
  Add(Event::KIND_GRANTED_COPY, 150, 400);  // Beside it.
  Add(Event::KIND_LINK_GAP, 400, 500).set_why(Event::WHY_SLOT);
  Add(Event::KIND_LINK_GAP, 510, 540).set_why(Event::WHY_SLOT);
  Event& other = Add(Event::KIND_LINK_GAP, 600, 600);
  other.set_device(1);
  other.set_open(true);
  Event& open = Add(Event::KIND_LINK_GAP, 900, 900);
  open.set_why(Event::WHY_THREAD);
  open.set_open(true);
  const Json all = Written();
  EXPECT_EQ(links_,
            "DEVICE  LINK                                   TIME     MS  "
            "LONGEST  GAPS\n"
            "     0  copies                               40.0 %  400.0\n"
            "     0  idle: its place is in use            13.0 %  130.0  "
            "  100.0     2\n"
            "     0  idle: the link's thread was not run  10.0 %  100.0  "
            "  100.0     1\n"
            "     0  idle: gaps below 1 ms                37.0 %  370.0\n"
            "     1  copies                                0.0 %    0.0\n"
            "     1  idle: no copy is due                 40.0 %  400.0  "
            "  400.0     1\n"
            "     1  idle: gaps below 1 ms                60.0 %  600.0\n");
  const Json gap = Of(all, "X").at(2);
  EXPECT_EQ(RowOf(all, gap), "device 0 (a \"device\")/idle");
  EXPECT_EQ(gap["name"], "its place is in use");
  EXPECT_EQ(gap["dur"], 100'000.0);
}

TEST_F(TraceJsonTest, ALinksRateIsCountedInBins) {
  // 100 bytes in [5 ms, 25 ms), and 100 at once at 90 ms.
  Add(Event::KIND_COPY_IN, 5, 25);
  Add(Event::KIND_COPY_IN, 90, 90);
  const Json all = Written();
  std::map<double, double> rates;
  for (const Json& one : Of(all, "C")) {
    EXPECT_EQ(one["name"], "link rate");
    rates[one["ts"]] = one["args"]["bytes a second"];
  }
  const std::map<double, double> want = {
      {0.0, 2500.0},   {10'000.0, 5000.0},   {20'000.0, 2500.0},
      {30'000.0, 0.0}, {90'000.0, 10'000.0}, {100'000.0, 0.0}};
  EXPECT_EQ(rates, want);
}

TEST_F(TraceJsonTest, NamesThatAreNotKnownAreNumbers) {
  Event& stage = Add(Event::KIND_STAGE, 1, 2);
  stage.set_session_id(99);
  stage.set_group(1000);
  stage.set_failed(true);
  const Json all = Written();
  const Json slice = Of(all, "X").at(0);
  EXPECT_EQ(RowOf(all, slice), "session 99/requests");
  EXPECT_EQ(slice["name"], "stage group 1000");
  EXPECT_EQ(slice["args"]["failed"], true);
}

TEST_F(TraceJsonTest, UsedBytesAreCounters) {
  Event& host = Add(Event::KIND_HOST_USED, 1, 1);
  host.set_bytes(5);
  Add(Event::KIND_DEVICE_USED, 2, 2).set_bytes(6);
  const std::vector<Json> counters = Of(Written(), "C");
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0]["name"], "host pool used");
  EXPECT_EQ(counters[0]["args"]["bytes"], 5);
  EXPECT_EQ(counters[1]["name"], "device used");
}

}  // namespace hoist::ctl::trace_json_test
