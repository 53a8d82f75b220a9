// Every verb, there and back, over a real socket.
#include <sys/stat.h>

#include "tests/component/session/session_fixture.h"

namespace hoistd::testing::session_verbs_test {

using ::hoist::v1::ClientMessage;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionVerbs : public SessionFixture {
 protected:
  void SetUp() override {
    SessionFixture::SetUp();
    client_.emplace(path());
    ASSERT_EQ(client_->Open().message.code(), 0);
  }
  void TearDown() override {
    client_.reset();
    SessionFixture::TearDown();
  }
  RawSession& client() { return *client_; }

  std::optional<RawSession> client_;
};

TEST_F(SessionFixture, OpenSessionTellsWhoServesAndWhoAsked) {
  OpenSessionArgs seen;
  engine().verb<OpenSessionArgs>().Answer([&](auto call) {
    seen = call.args;
    call.done(engine().NewSession());
  });
  RawSession client(path());
  ClientMessage message;
  message.set_request_id(77);
  message.mutable_open_session()->set_client_name("worker 3");
  message.mutable_open_session()->set_device_budget_bytes(12345);
  const auto reply = client.Call(message).message;
  EXPECT_EQ(reply.request_id(), 77u);
  EXPECT_EQ(reply.code(), 0);
  EXPECT_EQ(reply.open_session().session_id(), 1u);
  EXPECT_EQ(reply.open_session().daemon_version(), "1.2.3");
  EXPECT_EQ(reply.open_session().instance_id(), std::string(16, '\7'));
  ASSERT_EQ(reply.open_session().devices_size(), 1);
  EXPECT_EQ(reply.open_session().devices(0).name(), "emulated");
  EXPECT_EQ(reply.open_session().devices(0).slab_bytes(), 256u << 20);

  EXPECT_EQ(seen.client_name, "worker 3");
  EXPECT_EQ(seen.device_budget_bytes, 12345u);
  EXPECT_EQ(seen.peer.uid.number(), getuid());
  EXPECT_EQ(seen.peer.pid, getpid());
  EXPECT_TRUE(seen.peer.admin);
  EXPECT_EQ(seen.peer.via, "socket");
}

TEST_F(SessionFixture, ARefusedOpenMayBeTriedAgain) {
  engine().verb<OpenSessionArgs>().Answer(
      [](auto call) { call.done(absl::UnavailableError("draining")); });
  RawSession client(path());
  const auto refused = client.Open().message;
  EXPECT_EQ(refused.code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(refused.message(), "draining");
  engine().verb<OpenSessionArgs>().Answer(
      [&](auto call) { call.done(engine().NewSession()); });
  EXPECT_EQ(client.Open().message.code(), 0);
}

TEST_F(SessionVerbs, RegisterModelHandsOverTheDescriptors) {
  const hoist::UniqueFd a = DevNull(), b = DevNull(), index = DevNull();
  ClientMessage message;
  message.set_request_id(5);
  auto* ask = message.mutable_register_model();
  ask->set_name("minilm");
  // Indexes need not be in order.
  auto* shard = ask->add_shards();
  shard->set_name("a.safetensors");
  shard->set_fd_index(2);
  shard = ask->add_shards();
  shard->set_name("b.safetensors");
  shard->set_fd_index(0);
  ask->mutable_index()->set_name("model.safetensors.index.json");
  ask->mutable_index()->set_fd_index(1);
  ask->mutable_grouping()->set_rule(hoist::v1::Grouping::RULE_WHOLE);
  ask->set_readers(hoist::v1::READERS_EVERYONE);
  ASSERT_TRUE(
      client().Send(message, std::vector<int>{b.get(), index.get(), a.get()}));
  auto call = engine().verb<RegisterModelArgs>().Next();
  EXPECT_EQ(call.session, SessionId(1));
  EXPECT_EQ(call.args.name, "minilm");
  ASSERT_EQ(call.args.shards.size(), 2u);
  EXPECT_EQ(call.args.shards[0].name, "a.safetensors");
  EXPECT_TRUE(call.args.shards[0].fd.valid());
  EXPECT_EQ(call.args.shards[1].name, "b.safetensors");
  ASSERT_TRUE(call.args.index.has_value());
  EXPECT_TRUE(call.args.index->fd.valid());
  EXPECT_EQ(call.args.grouping.rule, GroupingRule::kWhole);
  EXPECT_EQ(call.args.readers, Readers::kEveryone);
  call.done(ModelOf(9, 2));
  const auto reply = client().Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.request_id(), 5u);
  EXPECT_EQ(reply->message.model().id(), 9u);
  EXPECT_EQ(reply->message.model().groups(0).tensors_size(), 2);
}

TEST_F(SessionVerbs, TwentyThousandExplicitTensorsGoBothWays) {
  const hoist::UniqueFd shard_fd = DevNull();
  ClientMessage message;
  message.set_request_id(6);
  auto* ask = message.mutable_register_model();
  ask->set_name("huge");
  ask->add_shards()->set_name("a.safetensors");
  ask->mutable_grouping()->set_rule(hoist::v1::Grouping::RULE_EXPLICIT);
  auto* group = ask->mutable_grouping()->add_groups();
  group->set_name("all");
  for (int i = 0; i < 20'000; ++i) {
    group->add_tensors("transformer.layers.with.a.long.name." +
                       std::to_string(i));
  }
  ASSERT_GT(message.ByteSizeLong(), hoist::kMaxInlineBody);
  engine().verb<RegisterModelArgs>().Answer([](auto call) {
    const auto& groups = call.args.grouping.groups;
    call.done(groups.size() == 1 && groups[0].tensors.size() == 20'000
                  ? absl::StatusOr<ModelPtr>(ModelOf(1, 20'000))
                  : absl::InternalError("names were lost"));
  });
  const auto reply =
      client().Call(message, std::vector<int>{shard_fd.get()}).message;
  EXPECT_EQ(reply.code(), 0) << reply.message();
  ASSERT_EQ(reply.model().groups(0).tensors_size(), 20'000);
  EXPECT_EQ(reply.model().groups(0).tensors(19'999).name(),
            "layer.0.block.of.a.long.name.19999");
}

ClientMessage OneTensorsPublication() {
  ClientMessage message;
  message.set_request_id(7);
  auto* ask = message.mutable_publish();
  ask->set_model("made");
  ask->mutable_group()->set_name("g");
  ask->mutable_group()->set_image_bytes(4096);
  auto* tensor = ask->mutable_group()->add_tensors();
  tensor->set_name("t");
  tensor->set_dtype(hoist::v1::DTYPE_F32);
  tensor->add_shape(4);
  tensor->set_size_bytes(16);
  return message;
}

TEST_F(SessionVerbs, PublishHandsOverTheImage) {
  const hoist::UniqueFd image = SealedMemfd(4096);
  const ClientMessage message = OneTensorsPublication();
  ASSERT_TRUE(client().Send(message, std::vector<int>{image.get()}));
  auto call = engine().verb<PublishArgs>().Next();
  EXPECT_EQ(call.args.model, "made");
  EXPECT_EQ(call.args.group.name, "g");
  EXPECT_EQ(call.args.group.image_bytes, 4096u);
  EXPECT_EQ(call.args.readers, std::nullopt);
  struct stat sent, came;
  ASSERT_EQ(fstat(image.get(), &sent), 0);
  ASSERT_EQ(fstat(call.args.image.get(), &came), 0);
  EXPECT_EQ(sent.st_ino, came.st_ino);
  call.done(absl::AlreadyExistsError("other bytes"));
  const auto reply = client().Receive();
  EXPECT_EQ(reply->message.code(),
            static_cast<int>(absl::StatusCode::kAlreadyExists));
}

TEST_F(SessionVerbs, APublishersModelHasItsGroupAloneIfItWantsNoOthers) {
  auto spec = std::make_shared<ModelSpec>();
  spec->name = "made";
  spec->published = true;
  for (const char* name : {"f", "g", "h"}) {
    auto group = std::make_shared<Group>();
    group->name = name;
    spec->groups.push_back(std::move(group));
  }
  spec->group_contents.resize(3);
  const auto model = std::make_shared<const Model>(
      Model{.id = ModelId(3), .spec = std::move(spec)});
  const auto told = [&](bool group_alone) {
    const hoist::UniqueFd image = SealedMemfd(4096);
    ClientMessage message = OneTensorsPublication();
    message.mutable_publish()->set_group_alone(group_alone);
    EXPECT_TRUE(client().Send(message, std::vector<int>{image.get()}));
    engine().verb<PublishArgs>().Next().done(model);
    return client().Receive()->message.model();
  };
  EXPECT_EQ(told(false).groups_size(), 3);
  EXPECT_EQ(told(false).group_count(), 0u);
  const hoist::v1::Model alone = told(true);
  ASSERT_EQ(alone.groups_size(), 1);
  EXPECT_EQ(alone.groups(0).name(), "g");
  EXPECT_EQ(alone.groups(0).index(), 1u);
  EXPECT_EQ(alone.group_count(), 3u);
  EXPECT_EQ(alone.id(), 3u);
  EXPECT_EQ(alone.name(), "made");
}

TEST_F(SessionVerbs, ReadImageHandsOverTheMemfdAndIsJustAnswered) {
  const hoist::UniqueFd target = TargetMemfd(12288);
  ASSERT_TRUE(
      client().Send(ReadImageMessage(8), std::vector<int>{target.get()}));
  auto call = engine().verb<ReadImageArgs>().Next();
  EXPECT_EQ(call.args.key, (GroupKey{ModelId(3), GroupIndex(4)}));
  EXPECT_EQ(call.args.deadline, absl::Milliseconds(250));
  EXPECT_EQ(call.args.memfd_bytes, 12288u);
  struct stat sent, came;
  ASSERT_EQ(fstat(target.get(), &sent), 0);
  ASSERT_EQ(fstat(call.args.memfd.get(), &came), 0);
  EXPECT_EQ(sent.st_ino, came.st_ino);
  call.done(absl::OkStatus());
  const auto reply = client().Receive();
  EXPECT_EQ(reply->message.request_id(), 8u);
  EXPECT_EQ(reply->message.code(), 0);
  EXPECT_EQ(reply->message.body_case(), hoist::v1::DaemonMessage::BODY_NOT_SET);
}

TEST_F(SessionVerbs, StageGivesLeaseAndSlabDescriptors) {
  hoist::UniqueFd slab = SealedMemfd(8192);
  struct stat original;
  ASSERT_EQ(fstat(slab.get(), &original), 0);
  ASSERT_TRUE(client().Send(StageMessage(8)));
  auto call = engine().verb<StageArgs>().Next();
  EXPECT_EQ(call.args.key, (GroupKey{ModelId(3), GroupIndex(4)}));
  EXPECT_EQ(call.args.device, DeviceIndex(0));
  EXPECT_EQ(call.args.deadline, absl::Milliseconds(250));
  LeaseGrant grant;
  grant.id = LeaseId(21);
  grant.key = call.args.key;
  grant.offset = 4096;
  grant.bytes = 8192;
  SlabUse ipc;
  ipc.slab.id = SlabId(1);
  ipc.slab.backing = ipc.share.backing = Backing::kIpc;
  ipc.share.ipc_handle.fill(0x5a);
  SlabUse memfd;
  memfd.slab.id = SlabId(2);
  memfd.share.fd = slab.get();
  grant.new_slabs = {ipc, memfd};
  call.done(std::move(grant));
  // The engine's descriptor is only borrowed for the length of the callback.
  slab.reset();
  const auto reply = client().Receive();
  ASSERT_TRUE(reply.has_value());
  const auto& lease = reply->message.lease();
  EXPECT_EQ(lease.id(), 21u);
  EXPECT_EQ(lease.offset_bytes(), 4096u);
  ASSERT_EQ(lease.slabs_size(), 2);
  EXPECT_EQ(lease.slabs(0).backing(), hoist::v1::BACKING_IPC);
  EXPECT_EQ(lease.slabs(0).ipc_handle(), std::string(64, 0x5a));
  EXPECT_EQ(lease.slabs(1).backing(), hoist::v1::BACKING_MEMFD);
  EXPECT_EQ(lease.slabs(1).fd_index(), 0u);
  ASSERT_EQ(reply->fds.size(), 1u);
  struct stat came;
  ASSERT_EQ(fstat(reply->fds[0].get(), &came), 0);
  EXPECT_EQ(came.st_ino, original.st_ino);
}

TEST_F(SessionVerbs, APlanIsAskedToGiveWay) {
  RawSession session(path());
  ASSERT_EQ(session.Open().message.code(), 0);
  engine().Say(GiveWay{SessionId(2), PlanId(7), absl::Milliseconds(30)});
  const auto asked = session.Receive();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->message.request_id(), 0u);
  EXPECT_EQ(asked->message.give_way().id(), 7u);
  EXPECT_EQ(asked->message.give_way().idle_ms(), 30u);
}

TEST_F(SessionVerbs, ASessionIsAskedToWake) {
  RawSession session(path());
  ASSERT_EQ(session.Open().message.code(), 0);
  engine().Say(Wake{SessionId(2)});
  const auto asked = session.Receive();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->message.request_id(), 0u);
  EXPECT_TRUE(asked->message.has_wake());
}

TEST_F(SessionVerbs, OnlyWhoSaysSoIsAskedToCloseSlabs) {
  RawSession closer(path());
  hoist::v1::ClientMessage open;
  open.mutable_open_session()->set_client_name("closer");
  open.mutable_open_session()->set_closes_slabs(true);
  engine().verb<OpenSessionArgs>().Answer([this](auto call) {
    EXPECT_TRUE(call.args.closes_slabs);
    call.done(engine().NewSession());
  });
  ASSERT_EQ(closer.Call(open).message.code(), 0);
  engine().Say(
      SlabAsk{SessionId(2), DeviceIndex(1), 9, {SlabId(4), SlabId(6)}});
  const auto asked = closer.Receive();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->message.request_id(), 0u);
  EXPECT_EQ(asked->message.code(), 0);
  EXPECT_EQ(asked->message.close_slabs().device(), 1u);
  EXPECT_EQ(asked->message.close_slabs().number(), 9u);
  EXPECT_THAT(asked->message.close_slabs().slab_ids(), ElementsAre(4, 6));

  hoist::v1::ClientMessage closed;
  closed.set_request_id(5);
  closed.mutable_slabs_closed()->set_device(1);
  closed.mutable_slabs_closed()->set_number(9);
  closed.mutable_slabs_closed()->add_slab_ids(6);
  ASSERT_TRUE(closer.Send(closed));
  auto call = engine().verb<SlabsClosedArgs>().Next();
  EXPECT_EQ(call.args.device, DeviceIndex(1));
  EXPECT_EQ(call.args.number, 9u);
  EXPECT_THAT(call.args.slabs, ElementsAre(SlabId(6)));
  call.done(absl::OkStatus());
  EXPECT_EQ(closer.Receive()->message.request_id(), 5u);

  engine().verb<OpenSessionArgs>().Answer([this](auto opened) {
    EXPECT_FALSE(opened.args.closes_slabs);
    opened.done(engine().NewSession());
  });
  RawSession older(path());
  ASSERT_EQ(older.Open("older").message.code(), 0);
}

TEST_F(SessionVerbs, ASpareIsJustAnswered) {
  engine().verb<SpareArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.device, DeviceIndex(1));
    EXPECT_EQ(call.args.bytes, 4096u);
    EXPECT_EQ(call.args.deadline, absl::Milliseconds(7));
    call.done(absl::ResourceExhaustedError("could leave 1 KiB"));
  });
  ClientMessage spare;
  spare.mutable_spare()->set_device(1);
  spare.mutable_spare()->set_bytes(4096);
  spare.mutable_spare()->set_deadline_ms(7);
  EXPECT_EQ(client().Call(spare).message.message(), "could leave 1 KiB");
}

TEST_F(SessionVerbs, PrefetchReleaseAndSetOrderAreJustAnswered) {
  engine().verb<PrefetchArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.model, ModelId(3));
    EXPECT_THAT(call.args.groups, ElementsAre(GroupIndex(2), GroupIndex(0)));
    EXPECT_EQ(call.args.to, OnHost());
    call.done(absl::OkStatus());
  });
  engine().verb<ReleaseArgs>().Answer([](auto call) {
    EXPECT_THAT(call.args.leases, ElementsAre(LeaseId(5), LeaseId(6)));
    call.done(absl::NotFoundError("no lease 6"));
  });
  engine().verb<SetOrderArgs>().Answer([](auto call) {
    EXPECT_EQ(call.args.model, ModelId(3));
    EXPECT_THAT(call.args.groups, ElementsAre(GroupIndex(1), GroupIndex(1)));
    call.done(absl::OkStatus());
  });
  ClientMessage prefetch;
  prefetch.mutable_prefetch()->set_model_id(3);
  prefetch.mutable_prefetch()->add_groups(2);
  prefetch.mutable_prefetch()->add_groups(0);
  prefetch.mutable_prefetch()->set_tier(hoist::v1::TIER_HOST);
  EXPECT_EQ(client().Call(prefetch).message.code(), 0);
  ClientMessage release;
  release.mutable_release()->add_lease_ids(5);
  release.mutable_release()->add_lease_ids(6);
  const auto reply = client().Call(release).message;
  EXPECT_EQ(reply.code(), static_cast<int>(absl::StatusCode::kNotFound));
  EXPECT_EQ(reply.message(), "no lease 6");
  ClientMessage order;
  order.mutable_set_order()->set_model_id(3);
  order.mutable_set_order()->add_groups(1);
  order.mutable_set_order()->add_groups(1);
  EXPECT_EQ(client().Call(order).message.code(), 0);
}

TEST_F(SessionVerbs, RepliesCarryTheirRequestsIdsInAnyOrder) {
  ASSERT_TRUE(client().Send(DescribeMessage(100)));
  ASSERT_TRUE(client().Send(DescribeMessage(200)));
  auto first = engine().verb<DescribeModelArgs>().Next();
  auto second = engine().verb<DescribeModelArgs>().Next();
  EXPECT_EQ(first.args.name, "minilm");
  second.done(ModelOf(2, 1));
  EXPECT_EQ(client().Receive()->message.request_id(), 200u);
  first.done(absl::NotFoundError("no such model"));
  EXPECT_EQ(client().Receive()->message.request_id(), 100u);
}

TEST_F(SessionVerbs, ALeaseInMoreSlabsThanAMessageCarriesEndsTheSession) {
  const hoist::UniqueFd slab = DevNull();
  ASSERT_TRUE(client().Send(StageMessage(8)));
  auto call = engine().verb<StageArgs>().Next();
  LeaseGrant grant;
  SlabUse use;
  use.share.fd = slab.get();
  grant.new_slabs.assign(kMaxSlabFdsPerLease + 1, use);
  call.done(std::move(grant));
  const auto reply = client().Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->message.code(),
            static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(reply->message.message(), HasSubstr("larger slabs"));
  EXPECT_EQ(client().Receive(), std::nullopt);
  client().Close();
  engine().WaitUntilClosed(SessionId(1));  // Which gives the lease back.
}

TEST_F(SessionVerbs, ALeaseInAsManySlabsAsAMessageCarriesArrives) {
  const hoist::UniqueFd slab = DevNull();
  ASSERT_TRUE(client().Send(StageMessage(8)));
  auto call = engine().verb<StageArgs>().Next();
  LeaseGrant grant;
  SlabUse use;
  use.share.fd = slab.get();
  grant.new_slabs.assign(kMaxSlabFdsPerLease, use);
  call.done(std::move(grant));
  const auto reply = client().Receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->fds.size(), kMaxSlabFdsPerLease);
  EXPECT_EQ(reply->message.lease().slabs(kMaxSlabFdsPerLease - 1).fd_index(),
            kMaxSlabFdsPerLease - 1);
}

TEST_F(SessionFixture, ShutdownClosesSessionsAndRemovesTheSocket) {
  RawSession client(path());
  ASSERT_EQ(client.Open().message.code(), 0);
  server_->Shutdown();
  EXPECT_THAT(engine().closed(), ElementsAre(SessionId(1)));
  EXPECT_EQ(client.Receive(), std::nullopt);
  EXPECT_NE(access(path().c_str(), F_OK), 0);
  server_->Shutdown();  // Again: nothing happens.
  EXPECT_FALSE(RawSession(path()).valid());
}

TEST_F(SessionFixture, ASessionOpenedAfterShutdownIsClosed) {
  engine().verb<OpenSessionArgs>().Answer(nullptr);
  RawSession client(path());
  ClientMessage open;
  open.mutable_open_session();
  ASSERT_TRUE(client.Send(open));
  auto call = engine().verb<OpenSessionArgs>().Next();
  server_->Shutdown();
  EXPECT_THAT(engine().closed(), IsEmpty());
  call.done(SessionId(41));
  EXPECT_THAT(engine().closed(), ElementsAre(SessionId(41)));
}

}  // namespace hoistd::testing::session_verbs_test
