// hoistctl's command line against a gRPC server over the scripted engine.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "client/ctl/command_line.h"
#include "daemon/socket/listening_socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/shared/socket_path.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/rpc/lent_books.h"
#include "tests/unit/rpc/rpc_fixture.h"

namespace hoistd::ctl_test {

using ::hoistd::testing::LentBooks;
using ::hoistd::testing::MakeModel;
using ::hoistd::testing::NodeRig;
using ::hoistd::testing::RpcTest;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Ran {
  int exit = -1;
  std::string out;
  std::string err;
};

Ran RunWords(std::vector<std::string> words, bool terminal = false) {
  words.insert(words.begin(), "hoistctl");
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  std::ostringstream out;
  std::ostringstream err;
  Ran ran;
  ran.exit = hoist::ctl::RunCommandLine(static_cast<int>(argv.size()),
                                        argv.data(), out, err, terminal);
  ran.out = out.str();
  ran.err = err.str();
  return ran;
}

class CtlTest : public RpcTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(dir_.path() + "/tiny");
    std::ofstream(dir_.path() + "/tiny/model.safetensors") << "bytes";
    RpcOptions options;
    options.model_roots = {dir_.path()};
    Serve(options);
    books_.LendTo(engine_);
    Fill();
  }

  // A model of root's with an evil name, two leases and a pin.
  void Fill() {
    NodeRig& rig = books_.rig;
    session_ = rig.Open(kRoot, "embedder");
    const ModelId model = rig.AddModel(session_, kEvil, {1, 1});
    const GroupKey leased = {model, GroupIndex(0)};
    rig.StageNow(session_, leased);
    rig.StageNow(session_, leased);
    ASSERT_OK(
        rig.Release(session_, rig.StageNow(session_, {model, GroupIndex(1)})));
    rig.Bring(leased, NodeRig::FirstDevice(), /*pin=*/true);
    rig.Evict(kEvil, OnHost());
    books_.view.now = rig.now + absl::Seconds(90);
  }

  Ran Ctl(std::vector<std::string> words, bool terminal = false) const {
    words.insert(words.begin(),
                 {"--socket", dir_.path() + "/hoistd.grpc.sock"});
    return RunWords(std::move(words), terminal);
  }

  static inline const Peer kRoot = {
      .uid = User(0), .admin = true, .via = "socket"};
  static constexpr char kEvil[] = "minilm\x1b[31m";
  LentBooks books_;
  SessionId session_;
};

TEST_F(CtlTest, StatusShowsTiersInHumanSizes) {
  const Ran ran = Ctl({"status"});
  EXPECT_EQ(ran.exit, 0);
  EXPECT_THAT(ran.out, StartsWith("hoistd 1.2.3, pid "));
  EXPECT_THAT(ran.out,
              HasSubstr("device 0  [#####...............]  32.0 KiB  8.0 KiB"));
  EXPECT_THAT(ran.out, HasSubstr("\ndevice 0: minilm\\x1b[31m 8.0 KiB\n"));
  EXPECT_THAT(ran.out, HasSubstr("note: a note"));
}

TEST_F(CtlTest, ADevicesCapacityBelowItsPoolIsExplained) {
  const std::vector<std::vector<std::string>> commands = {
      {"status"}, {"top", "--every", "0.1"}, {"explain", kEvil}};
  for (const auto& words : commands) {
    EXPECT_THAT(Ctl(words).out, Not(HasSubstr("other programs")));
  }
  books_.rig.Resize(NodeRig::FirstDevice(), 3, /*headroom_pages=*/4);
  for (const auto& words : commands) {
    EXPECT_THAT(
        Ctl(words).out,
        HasSubstr("\ndevice 0: other programs and device.headroom (16.0 KiB) "
                  "have 20.0 KiB of the pool; it grows once 4.0 KiB more have "
                  "been free for 5 s\n"));
  }
  EXPECT_THAT(Ctl({"status"}).out, HasSubstr("  12.0 KiB  "));
}

TEST_F(CtlTest, ADevicesCapacityThatWorkersLackedIsExplained) {
  // Of 8 pages 2 are taken: 6 that stay free, and 1 more.
  books_.rig.Spare(books_.rig.Open(), 1);
  EXPECT_THAT(Ctl({"status"}).out,
              AllOf(HasSubstr("\ndevice 0: 28.0 KiB of the pool are left to "
                              "workers that lack memory\n"),
                    Not(HasSubstr("other programs"))));
}

TEST_F(CtlTest, TopIsOneScreenWhereNobodyLooksOn) {
  const Ran ran = Ctl({"top", "--every", "0.1"});
  EXPECT_EQ(ran.exit, 0);
  EXPECT_THAT(ran.out, StartsWith("hoistd 1.2.3, pid "));
  EXPECT_THAT(ran.out, HasSubstr("\nTIER  "));
  EXPECT_THAT(ran.out, Not(HasSubstr("\x1b")));
  const Ran twice = Ctl({"top", "--every", "0.1", "--count", "2"}, true);
  const std::string clear = "\x1b[H\x1b[J";
  EXPECT_EQ(twice.out.find(clear), 0u);
  EXPECT_NE(twice.out.find(clear, 1), std::string::npos);
  EXPECT_EQ(RunWords({"top", "--every", "0"}).exit, 2);
}

TEST_F(CtlTest, ListsEscapeWhatClientsNamed) {
  const Ran models = Ctl({"models"});
  EXPECT_EQ(models.exit, 0);
  EXPECT_THAT(models.out, HasSubstr("minilm\\x1b[31m"));
  EXPECT_THAT(models.out, Not(HasSubstr("\x1b")));
  const Ran groups = Ctl({"groups", kEvil});
  EXPECT_THAT(groups.out, HasSubstr("device 0 (2 leases, pinned)"));
  EXPECT_THAT(groups.out, StartsWith("device 0  P#\na letter a group"));
  const Ran sessions = Ctl({"sessions"});
  EXPECT_THAT(sessions.out, HasSubstr("embedder"));
  EXPECT_THAT(sessions.out, HasSubstr("1 min 30 s"));
}

TEST_F(CtlTest, JsonHasTheContractsFieldNames) {
  const Ran ran = Ctl({"sessions", "--json"});
  EXPECT_EQ(ran.exit, 0);
  EXPECT_THAT(ran.out, HasSubstr("\"client_name\": \"embedder\""));
  EXPECT_THAT(ran.out, HasSubstr("\"waiting\": 0"));
  EXPECT_THAT(Ctl({"version", "--json"}).out, StartsWith("{\"version\":\""));
}

TEST_F(CtlTest, RefusalIsOneLineWithCodeAndReason) {
  const Ran ran = Ctl({"groups", "none"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_THAT(ran.err, StartsWith("hoistctl: NOT_FOUND: no model \"none\""));
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1);
  EXPECT_EQ(ran.out, "");
}

TEST_F(CtlTest, WrongUsageIsTwo) {
  EXPECT_EQ(Ctl({}).exit, 2);
  EXPECT_EQ(Ctl({"frobnicate"}).exit, 2);
  EXPECT_EQ(Ctl({"groups"}).exit, 2);
  EXPECT_EQ(Ctl({"pin", "m", "--tier", "disk"}).exit, 2);
  EXPECT_EQ(Ctl({"pin", "m"}).exit, 2);
  EXPECT_EQ(Ctl({"drain", "--deadline", "-1"}).exit, 2);
  const Ran help = Ctl({"--help"});
  EXPECT_EQ(help.exit, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit codes: 0 done; 1 refused"));
}

TEST_F(CtlTest, AWrongCommandNamesTheNearest) {
  EXPECT_EQ(Ctl({"statsu"}).err,
            "hoistctl: there is no command \"statsu\"; did you mean status?\n");
  EXPECT_EQ(Ctl({"frobnicate"}).err,
            "hoistctl: there is no command \"frobnicate\"; `hoistctl help` "
            "lists them\n");
  EXPECT_EQ(Ctl({}).err,
            "hoistctl: which command? `hoistctl help` lists them\n");
  // What else is wrong is not taken for that.
  EXPECT_THAT(RunWords({"--socket"}).err, HasSubstr("--socket"));
  EXPECT_THAT(RunWords({"--timeout", "x", "status"}).err,
              HasSubstr("--timeout"));
}

TEST_F(CtlTest, HelpAndVersionAreCommandsAndOptions) {
  EXPECT_EQ(RunWords({"help"}).out, RunWords({"--help"}).out);
  EXPECT_EQ(RunWords({"version"}).out, RunWords({"--version"}).out);
  const Ran load = RunWords({"help", "load"});
  EXPECT_EQ(load.exit, 0);
  EXPECT_THAT(load.out, AllOf(HasSubstr("hoistctl load"), HasSubstr("--tier")));
  const Ran none = RunWords({"help", "laod"});
  EXPECT_EQ(none.exit, 2);
  EXPECT_THAT(none.err, HasSubstr("did you mean load?"));
}

TEST_F(CtlTest, ErrorsAreJsonToo) {
  const auto is_json = [](const std::string& code, const std::string& why) {
    return AllOf(StartsWith("{\"error\":{"), EndsWith("}}\n"),
                 HasSubstr("\"code\":\"" + code + "\""),
                 HasSubstr("\"message\":\"" + why));
  };
  EXPECT_THAT(Ctl({"groups", "none", "--json"}).err,
              is_json("NOT_FOUND", "no model \\\"none\\\""));
  EXPECT_THAT(Ctl({"--json", "statsu"}).err,
              is_json("INVALID_ARGUMENT", "there is no command"));
  EXPECT_THAT(Ctl({"--json", "pin", "m"}).err,
              is_json("INVALID_ARGUMENT", "--tier is required"));
  const Ran none =
      RunWords({"--socket", dir_.path() + "/none", "status", "--json"});
  EXPECT_EQ(none.exit, 3);
  EXPECT_THAT(none.err, is_json("UNAVAILABLE", "no hoistd at "));
  EXPECT_EQ(std::count(none.err.begin(), none.err.end(), '\n'), 1);
}

TEST_F(CtlTest, NoDaemonIsThreeAndSaysWhatWouldDo) {
  const Ran none = RunWords({"--socket", dir_.path() + "/none", "status"});
  EXPECT_EQ(none.exit, 3);
  EXPECT_THAT(none.err, HasSubstr("systemctl start hoistd"));
  EXPECT_EQ(std::count(none.err.begin(), none.err.end(), '\n'), 1);
  EXPECT_EQ(RunWords({"--socket", "/" + std::string(200, 'x'), "status"}).exit,
            3);
}

TEST_F(CtlTest, UnavailableFromADaemonThatIsThereIsARefusal) {
  engine_.verb<LookArgs>().Answer(
      [](auto call) { call.done(absl::UnavailableError("stopping")); });
  const Ran ran = Ctl({"status"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_EQ(ran.err, "hoistctl: UNAVAILABLE: stopping\n");
}

// Workers find hoistd by the same variable.
TEST_F(CtlTest, TheSessionSocketsVariableNamesGrpcsToo) {
  setenv(hoist::kSocketPathVariable, (dir_.path() + "/hoistd.sock").c_str(), 1);
  EXPECT_EQ(RunWords({"status"}).exit, 0);
  unsetenv(hoist::kSocketPathVariable);
}

TEST_F(CtlTest, EitherSocketMayBeNamed) {
  const std::string session = dir_.path() + "/hoistd.sock";
  SocketFileOptions file;
  file.path = session;
  ASSERT_OK_AND_ASSIGN(const ListeningSocket listening,
                       ListeningSocket::Create(file));
  EXPECT_EQ(RunWords({"--socket", session, "status"}).exit, 0);
}

class CtlLoadTest : public CtlTest {
 protected:
  void SetUp() override {
    CtlTest::SetUp();
    engine_.verb<RegisterModelArgs>().Answer([this](auto call) {
      name_ = call.args.name;
      rule_ = call.args.grouping.rule;
      readers_ = call.args.readers;
      call.done(MakeModel("tiny", {"a", "b"}));
    });
    engine_.verb<LoadArgs>().Answer([this](auto call) {
      to_ = call.args.to;
      LoadProgress progress;
      progress.done_bytes = progress.total_bytes = 8192;
      progress.done_groups = progress.total_groups = 2;
      progress.left_out_groups = 1;
      progress.left_out_reason = "the host is full";
      call.done(progress);
    });
  }
  std::string name_;
  GroupingRule rule_ = GroupingRule::kBlock;
  std::optional<Readers> readers_;
  TierAt to_;
};

TEST_F(CtlLoadTest, OnlyTheResultWhereThereIsNoTerminal) {
  const Ran ran = Ctl({"load", dir_.path() + "/tiny"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.out, StartsWith("loaded tiny to host: 8.0 KiB, 2 of 2"));
  EXPECT_THAT(ran.out, HasSubstr("1 groups did not fit"));
  EXPECT_THAT(ran.out, HasSubstr("stay where they were: the host is full\n"));
  EXPECT_EQ(name_, "tiny");
  EXPECT_TRUE(to_ == OnHost());
}

TEST_F(CtlLoadTest, BarRewritesItsLineOnATerminal) {
  const Ran ran = Ctl({"load", dir_.path() + "/tiny"}, /*terminal=*/true);
  EXPECT_THAT(ran.out, StartsWith("\r[########################] 100 %"));
}

TEST_F(CtlLoadTest, OptionsReachTheEngine) {
  const Ran ran =
      Ctl({"load", dir_.path() + "/tiny", "--name", "other", "--tier", "device",
           "--device", "3", "--grouping", "whole", "--readers", "everyone"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(name_, "other");
  EXPECT_TRUE(to_ == OnDevice(DeviceIndex(3)));
  EXPECT_EQ(rule_, GroupingRule::kWhole);
  EXPECT_EQ(readers_, Readers::kEveryone);
}

TEST_F(CtlLoadTest, ARelativePathIsOurs) {
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(dir_.path());
  const Ran ran = Ctl({"load", "./tiny/"});
  std::filesystem::current_path(before);
  EXPECT_EQ(ran.exit, 0) << ran.err;
}

TEST_F(CtlLoadTest, JsonIsOneObjectALine) {
  const Ran ran = Ctl({"load", dir_.path() + "/tiny", "--json"});
  EXPECT_EQ(ran.exit, 0);
  std::istringstream lines(ran.out);
  std::string line;
  while (std::getline(lines, line)) {
    EXPECT_THAT(line, StartsWith("{\"done_bytes\":"));
  }
}

TEST_F(CtlTest, CheckSaysWhatIsDamaged) {
  CheckArgs asked;
  CheckProgress found;
  engine_.verb<CheckArgs>().Answer([&](auto call) {
    asked = std::move(call.args);
    CheckProgress half;
    half.total_groups = 2;
    asked.progress(half);
    found.done_groups = found.total_groups = 2;
    found.read_bytes = 8192;
    call.done(found);
  });
  const Ran right = Ctl({"check"});
  EXPECT_EQ(right.exit, 0) << right.err;
  EXPECT_EQ(right.out, "2 groups, 8.0 KiB read: all are right\n");
  EXPECT_EQ(asked.model, "");
  EXPECT_FALSE(asked.repair);
  EXPECT_TRUE(asked.asker.admin);

  found.damaged = 3;
  found.findings = {{"m/a", OnDisk(), "damaged: a bit"}};
  const Ran wrong = Ctl({"check", "m", "--repair"}, /*terminal=*/true);
  EXPECT_EQ(wrong.exit, 4);
  EXPECT_THAT(wrong.out, HasSubstr("\nm/a on disk: damaged: a bit\n2 more; "));
  EXPECT_THAT(wrong.out, HasSubstr("2 groups, 8.0 KiB read: 3 damaged\n"));
  EXPECT_EQ(asked.model, "m");
  EXPECT_TRUE(asked.repair);
  const Ran json = Ctl({"check", "--json"});
  EXPECT_EQ(json.exit, 4);
  EXPECT_THAT(json.out, HasSubstr("\"damaged\":3"));
  engine_.verb<CheckArgs>().Answer(
      [&](auto call) { call.done(absl::NotFoundError("no model x")); });
  EXPECT_EQ(Ctl({"check", "x"}).exit, 1);
}

TEST_F(CtlTest, EvictPinUnpinSelectWhatWasNamed) {
  CopySelector which;
  absl::Duration deadline;
  bool forget = false;
  engine_.verb<PinArgs>().Answer([&](auto call) {
    which = call.args.which;
    deadline = call.args.deadline;
    call.done(CopyTotals{3, 4096, 0, ""});
  });
  engine_.verb<EvictArgs>().Answer([&](auto call) {
    which = call.args.which;
    forget = call.args.forget;
    call.done(CopyTotals{1, 4096, 2, "leased by session 12"});
  });
  const Ran pin = Ctl({"pin", "m", "g", "--tier", "device", "--device", "1",
                       "--deadline", "1.5"});
  EXPECT_EQ(pin.out, "pinned 3 groups, 4.0 KiB\n");
  EXPECT_EQ(which.model, "m");
  EXPECT_EQ(which.group, "g");
  EXPECT_TRUE(which.at == OnDevice(DeviceIndex(1)));
  EXPECT_EQ(deadline, absl::Milliseconds(1500));
  const Ran evict = Ctl({"evict", "m", "--forget"});
  EXPECT_EQ(evict.out,
            "forgot 1 groups, 4.0 KiB\nkept 2 groups: leased by session 12\n");
  EXPECT_TRUE(forget);
  EXPECT_FALSE(which.at.has_value());
}

TEST_F(CtlTest, PlansShowWhoStreamsWhatAndEscapeNames) {
  NodeRig& rig = books_.rig;
  const SessionId session = rig.Open(kRoot, "embed\x1b[31m");
  const ModelId model = rig.AddModel(session, "streamed", {1, 1, 1});
  const PlanGrant plan = rig.PlanOf(rig.SetPlan(session, model, {0, 1, 2}, 2));
  ASSERT_EQ(plan.ring_bytes, 8192u);
  LaneStats lane;
  lane.plan = plan.id;
  lane.share.weight = 3;
  lane.skipped = 41;
  books_.view.lanes = {lane};
  const Ran ran = Ctl({"plans"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("embed\\x1b[31m"));
  EXPECT_THAT(ran.out, HasSubstr("streamed"));
  EXPECT_THAT(ran.out, HasSubstr("8.0 KiB"));
  EXPECT_THAT(ran.out, HasSubstr("41"));
  const Ran json = Ctl({"plans", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"ring_bytes\": \"8192\""));
  EXPECT_THAT(json.out, HasSubstr("\"weight\": 3"));
}

// One of each cause, and one to a session that the caller may not see.
TEST_F(CtlTest, PlansAndTopShowWhoHasLentWhatToWhom) {
  NodeRig& rig = books_.rig;
  const SessionId lender = rig.Open(kRoot, "embed\x1b[31m");
  const SessionId other = rig.Open(kRoot, "generate");
  const ModelId llama = rig.AddModel(other, "llama", {1});
  Tenure& tenure = rig.node().tenure();
  const auto lend = [&](const std::string& name, Loan loan, bool lent) {
    const ModelId model = rig.AddModel(lender, name, {2});
    const PlanGrant plan = rig.PlanOf(rig.SetPlan(lender, model, {0}, 2));
    loan.since = rig.now;
    tenure.reclaim().loans().Ask(*tenure.plans().Find(plan.id), loan);
    if (!lent) return;
    ASSERT_OK(rig.EndPlan(lender, plan.id));
    rig.FreePlan(plan.id);
  };
  lend("mini-1", {.why = Loan::Why::kNeed, .to = other, .to_model = llama},
       true);
  lend("mini-2", {.why = Loan::Why::kAdmin}, false);
  lend("mini-3", {.why = Loan::Why::kIdle}, true);
  lend("mini-4", {.why = Loan::Why::kGrowth}, true);
  lend("mini-5", {.why = Loan::Why::kNeed}, true);
  books_.view.now = rig.now + absl::Seconds(12);
  const std::vector<std::string> rows = {
      "mini-1       0  8.0 KiB  lent 12 s ago   llama of session " +
          absl::StrCat(other.number()) + " (generate)\n",
      "mini-2       0  8.0 KiB  asked 12 s ago  an admin\n",
      "mini-3       0  8.0 KiB  lent 12 s ago   anyone: it was idle\n",
      "mini-4       0  8.0 KiB  lent 12 s ago   itself: there is room for more "
      "of it\n",
      "mini-5       0  8.0 KiB  lent 12 s ago   another user\n"};
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"plans"},
        {"top", "--count", "1", "--every", "0.1"}}) {
    const Ran ran = Ctl(words);
    EXPECT_EQ(ran.exit, 0) << ran.err;
    for (const std::string& row : rows) {
      EXPECT_THAT(ran.out, HasSubstr("embed\\x1b[31m  " + row));
    }
  }
  const Ran json = Ctl({"plans", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"cause\": \"CAUSE_IDLE\""));
  EXPECT_THAT(json.out, HasSubstr("\"to_model\": \"llama\""));
}

TEST_F(CtlTest, ShareChangesWhatIsNamedOrIsRefusedForItsNumbers) {
  ShareOf of;
  ShareChange change;
  int calls = 0;
  engine_.verb<SetShareArgs>().Answer([&](auto call) {
    ++calls;
    of = call.args.of;
    change = call.args.change;
    if (of == ShareOf(PlanId(8)))
      return call.done(absl::NotFoundError("no plan 8"));
    ShareChanged changed;
    changed.before.max_bytes_per_second = 1 << 20;
    changed.after = change.AppliedTo(changed.before);
    call.done(changed);
  });
  const Ran ran = Ctl({"share", "7", "--weight", "3", "--priority", "-2",
                       "--max-rate", "10GB/s"});
  EXPECT_EQ(ran.exit, 0) << ran.err;
  EXPECT_EQ(of, ShareOf(PlanId(7)));
  EXPECT_EQ(change.weight, 3u);
  EXPECT_EQ(change.priority, -2);
  EXPECT_EQ(change.max_bytes_per_second, 10'000'000'000u);
  const Ran one = Ctl({"share", "7", "--priority", "5"});
  EXPECT_EQ(change.weight, std::nullopt);
  EXPECT_EQ(change.priority, 5);
  EXPECT_EQ(change.max_bytes_per_second, std::nullopt);
  EXPECT_THAT(one.out,
              HasSubstr("weight 1, priority 0, at most 1.0 MiB/s -> weight 1, "
                        "priority 5, at most 1.0 MiB/s"));
  EXPECT_THAT(Ctl({"share", "7", "--max-rate", "0"}).out,
              HasSubstr("-> weight 1, priority 0, no cap"));
  EXPECT_EQ(Ctl({"share", "8", "--weight", "2"}).exit, 1);
  const Ran loads = Ctl({"share", "--loads", "1", "--max-rate", "5MiB"});
  EXPECT_EQ(of, ShareOf(DeviceIndex(1)));
  EXPECT_EQ(loads.out,
            "loads of device 1: at most 1.0 MiB/s -> at most 5.0 MiB/s\n");
  const Ran permit = Ctl({"share", "--permit", "4", "--weight", "2"});
  EXPECT_EQ(of, ShareOf(PermitId(4)));
  EXPECT_THAT(permit.out, HasSubstr("permit 4: weight 1, priority 0, at most "
                                    "1.0 MiB/s -> weight 2, priority 0, "));
  EXPECT_EQ(calls, 6);
  const Ran nothing = Ctl({"share", "7"});
  EXPECT_EQ(nothing.exit, 2);
  EXPECT_THAT(nothing.err, HasSubstr("--weight, --priority or --max-rate"));
  EXPECT_EQ(Ctl({"share"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "--max-rate", "1MiB"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "7", "--loads", "0", "--max-rate", "1MiB"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "--loads", "0", "--weight", "2"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "7", "--permit", "4", "--weight", "2"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "7", "--weight", "0"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "7", "--priority", "11"}).exit, 2);
  EXPECT_EQ(Ctl({"share", "7", "--max-rate", "fast"}).exit, 2);
  EXPECT_EQ(calls, 6);
  EXPECT_THAT(Ctl({"share", "--help"}).out, HasSubstr("stays as it is"));
}

TEST_F(CtlTest, DrainThatRunsOutOfTimeSaysWhoHoldsWhat) {
  engine_.verb<SetDrainingArgs>().Answer(
      [](auto call) { call.done(absl::OkStatus()); });
  const Ran ran = Ctl({"drain"});
  EXPECT_EQ(ran.exit, 1);
  EXPECT_THAT(ran.out, HasSubstr("draining: 2 leases left"));
  EXPECT_THAT(
      ran.out,
      HasSubstr("session " + std::to_string(session_.number()) + " (embedder"));
  EXPECT_THAT(ran.err, StartsWith("hoistctl: DEADLINE_EXCEEDED: "));
}

TEST_F(CtlTest, TraceWritesAFileOrStandardOutput) {
  const std::string path = dir_.path() + "/t.json";
  for (const char* time : {"0.03", "30ms", "0.03s", "0.0005min"}) {
    const Ran ran = Ctl({"trace", "record", "--for", time, "--out", path});
    EXPECT_EQ(ran.exit, 0) << ran.err;
    // How long it was is up to the scheduler.
    EXPECT_THAT(ran.out, StartsWith("recorded "));
    EXPECT_THAT(ran.out,
                HasSubstr(" s in " + path + ": 0 slices, nothing dropped\n"));
    EXPECT_EQ(ran.err, "recording for 30 ms; Ctrl-C ends it early\n");
  }
  std::stringstream written;
  written << std::ifstream(path).rdbuf();
  EXPECT_THAT(written.str(), AllOf(StartsWith("{\"traceEvents\":["),
                                   EndsWith("\"unnamed_groups\":0}}\n")));
  const Ran out = Ctl({"trace", "record", "--for", "30ms", "--out", "-"});
  EXPECT_EQ(out.exit, 0);
  EXPECT_THAT(out.out, AllOf(StartsWith("{\"traceEvents\":["),
                             EndsWith("\"unnamed_groups\":0}}\n")));
}

TEST_F(CtlTest, TraceRefusesWhatIsNoTimeOrNoPlace) {
  for (const char* time : {"soon", "", "-1", "0", "10h", "601", "nan"}) {
    const Ran ran = Ctl({"trace", "record", "--for", time, "--out", "-"});
    EXPECT_EQ(ran.exit, 2) << time;
    EXPECT_EQ(ran.out, "") << time;
  }
  EXPECT_EQ(Ctl({"trace", "--out", "-"}).exit, 2);
  EXPECT_EQ(Ctl({"trace", "play", "--out", "-"}).exit, 2);
  const Ran nowhere = Ctl({"trace", "record", "--out", "/nowhere/t.json"});
  EXPECT_EQ(nowhere.exit, 2);
  EXPECT_EQ(nowhere.err,
            "hoistctl: /nowhere/t.json: No such file or directory\n");
  EXPECT_EQ(engine_.recorder.number(), 0u);
}

// tests/install/completion_test.py uses these scripts in their shells.
TEST_F(CtlTest, CompletionIsForThreeShells) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Ran ran = RunWords({"completion", shell});
    EXPECT_EQ(ran.exit, 0);
    EXPECT_THAT(ran.out, HasSubstr("__complete")) << shell;
  }
  EXPECT_EQ(RunWords({"completion", "tcsh"}).exit, 2);
}

TEST_F(CtlTest, CompletionOffersWhatCanStandThere) {
  const auto offers = [&](std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"__complete", "--socket", dir_.path() + "/hoistd.grpc.sock"});
    return RunWords(std::move(words)).out;
  };
  EXPECT_THAT(offers({""}),
              AllOf(HasSubstr("status\tthe node: tiers"),
                    HasSubstr("\ndrain\t"), Not(HasSubstr("__complete"))));
  EXPECT_THAT(offers({"--json", "dr"}), StartsWith("drain\t"));
  EXPECT_EQ(offers({"frobnicate", ""}), "");
  EXPECT_THAT(offers({"evict", "--"}),
              AllOf(HasSubstr("--forget\t"), HasSubstr("--tier\t"),
                    HasSubstr("--json\t"), Not(HasSubstr("--resume"))));
  EXPECT_EQ(offers({"evict", "--tier", ""}), "device\nhost\n");
  EXPECT_EQ(offers({"evict", "--tier=h"}), "--tier=host\n");
  EXPECT_EQ(offers({"completion", "z"}), "zsh\n");
  EXPECT_THAT(offers({"help", "unp"}), StartsWith("unpin\t"));
  EXPECT_EQ(offers({"load", ""}), ":files\n");
  EXPECT_EQ(offers({"groups", "minilm", ""}), "");
  EXPECT_EQ(offers({"drain", "--deadline", ""}), "");
  EXPECT_EQ(offers({"trace", ""}), "record\n");
  EXPECT_EQ(offers({"trace", "record", "--out", ""}), ":files\n");
}

TEST_F(CtlTest, CompletionAsksTheDaemonForNames) {
  NodeRig& rig = books_.rig;
  rig.Published(rig.Open(4711), "other's", "encoder.layer.0", 2);
  const auto offers = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "__complete");
    words.insert(words.end() - 1,
                 "--socket=" + dir_.path() + "/hoistd.grpc.sock");
    return RunWords(std::move(words)).out;
  };
  // The evil one could not be typed, and steers no terminal.
  EXPECT_EQ(offers({"evict", ""}), "4711:other's\t8.0 KiB\n");
  EXPECT_EQ(offers({"evict", "4711:other's", "enc"}),
            "encoder.layer.0\t8.0 KiB\n");
  EXPECT_EQ(offers({"evict", "4711:other's", "--tier", "host", "x"}), "");
  EXPECT_EQ(RunWords({"__complete", "--socket", "/nobody", "evict", ""}).out,
            "");
}

}  // namespace hoistd::ctl_test
