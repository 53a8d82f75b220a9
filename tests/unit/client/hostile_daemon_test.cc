// libhoist.so against a daemon that sends what it must not: typed errors, no
// crash, no descriptor left over.
#include <filesystem>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hoist/hoist.h"
#include "hoist/shared/wire.h"
#include "tests/unit/client/fake_daemon.h"

namespace hoist_test::hostile_daemon_test {

using Code = hoist::Code;
using Fds = std::vector<int>;

size_t OpenDescriptors() {
  size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

hoist::Result<hoist::Session> Connect(const FakeDaemon& daemon) {
  hoist::ConnectOptions options;
  options.socket_path = daemon.path();
  options.call_deadline = std::chrono::seconds(20);
  return hoist::Session::Connect(options);
}

// What a stage gives where the daemon answers it with `answer`; the session
// must be usable or end, and nothing may leak.
Code StageAgainst(
    const std::function<void(FakeDaemon&, Peer&, uint64_t)>& answer) {
  const size_t before = OpenDescriptors();
  Code code;
  {
    FakeDaemon* self = nullptr;
    FakeDaemon daemon(
        [&](Peer& peer, const pb::ClientMessage& message, const Fds&) {
          if (!message.has_stage()) return false;
          answer(*self, peer, message.request_id());
          return true;
        });
    self = &daemon;
    auto session = Connect(daemon);
    auto model = session->DescribeModel("m");
    code = session->Stage(*model, "a").status().code();
    (void)session->DescribeModel("m");
  }
  EXPECT_EQ(OpenDescriptors(), before);
  return code;
}

// The same with a lease that `spoil` has changed.
Code StageAgainstLease(const std::function<void(pb::Lease*)>& spoil,
                       bool with_slab = true, bool with_fd = true) {
  return StageAgainst([&](FakeDaemon& daemon, Peer& peer, uint64_t request) {
    pb::DaemonMessage reply = daemon.LeaseReply(request, 0, with_slab);
    spoil(reply.mutable_lease());
    const int fd = daemon.slab_fd();
    peer.Send(reply, std::span(&fd, with_fd ? 1 : 0));
  });
}

TEST(HostileDaemon, GarbageEndsTheSession) {
  const auto raw = [](const std::string& bytes) {
    return StageAgainst(
        [bytes](FakeDaemon&, Peer& peer, uint64_t) { peer.SendRaw(bytes); });
  };
  EXPECT_EQ(raw("x"), Code::kInternal);
  EXPECT_EQ(raw(std::string(5000, 'x')), Code::kInternal);
  hoist::FrameHeader header = {hoist::kFrameMagic, hoist::kProtocolVersion, 0,
                               99};
  const auto text = [&header] {
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
  };
  EXPECT_EQ(raw(text()), Code::kInternal);  // Shorter than it says.
  header.flags = hoist::kBodyInMemfd;
  EXPECT_EQ(raw(text()), Code::kInternal);  // No memfd.
  header.version = 99;
  EXPECT_EQ(raw(text()), Code::kFailedPrecondition);
  EXPECT_EQ(StageAgainst([](FakeDaemon&, Peer& peer, uint64_t) {
              peer.SendBody("\xff\xff\xff not a message");
            }),
            Code::kInternal);
}

TEST(HostileDaemon, ARequestThatWasNotMadeEndsTheSession) {
  EXPECT_EQ(StageAgainst([](FakeDaemon& daemon, Peer& peer, uint64_t request) {
              peer.Send(daemon.LeaseReply(request + 1000, 0, false));
            }),
            Code::kInternal);
}

TEST(HostileDaemon, RequestZeroSaysWhyTheSessionEnds) {
  EXPECT_EQ(StageAgainst([](FakeDaemon&, Peer& peer, uint64_t) {
              pb::DaemonMessage why;
              why.set_code(14);
              why.set_message("draining");
              peer.Send(why);
            }),
            Code::kUnavailable);
}

TEST(HostileDaemon, AnAnswerToAnotherQuestionIsInternal) {
  EXPECT_EQ(StageAgainst([](FakeDaemon& daemon, Peer& peer, uint64_t request) {
              peer.Send(daemon.OpenReply(request));
            }),
            Code::kInternal);
  EXPECT_EQ(StageAgainst([](FakeDaemon&, Peer& peer, uint64_t request) {
              pb::DaemonMessage nothing;
              nothing.set_request_id(request);
              peer.Send(nothing);
            }),
            Code::kInternal);
}

TEST(HostileDaemon, ACodeThatGrpcLacksIsUnknown) {
  EXPECT_EQ(StageAgainst([](FakeDaemon&, Peer& peer, uint64_t request) {
              pb::DaemonMessage reply;
              reply.set_request_id(request);
              reply.set_code(-77);
              peer.Send(reply);
            }),
            Code::kUnknown);
}

TEST(HostileDaemon, ASlabsMissingDescriptorIsInternal) {
  EXPECT_EQ(StageAgainstLease([](pb::Lease*) {}, true, false), Code::kInternal);
  EXPECT_EQ(StageAgainstLease(
                [](pb::Lease* l) { l->mutable_slabs(0)->set_fd_index(9); }),
            Code::kInternal);
  EXPECT_EQ(StageAgainstLease([](pb::Lease*) {}, false, true),
            Code::kInternal);  // No slab at all: the address would dangle.
}

TEST(HostileDaemon, ASlabThatIsShorterThanItSaysIsRefused) {
  EXPECT_NE(StageAgainstLease([](pb::Lease* l) {
              l->mutable_slabs(0)->set_size_bytes(512 * 1024);
            }),
            Code::kOk);
}

TEST(HostileDaemon, ASlabOrImageOutsideTheSpanIsRefused) {
  const auto slab = [](const std::function<void(pb::Slab*)>& spoil) {
    return StageAgainstLease([&](pb::Lease* l) { spoil(l->mutable_slabs(0)); });
  };
  EXPECT_NE(slab([](pb::Slab* s) { s->set_offset_bytes(~0ull); }), Code::kOk);
  EXPECT_NE(slab([](pb::Slab* s) { s->set_offset_bytes(1ull << 40); }),
            Code::kOk);
  EXPECT_NE(slab([](pb::Slab* s) { s->set_size_bytes(0); }), Code::kOk);
  EXPECT_NE(slab([](pb::Slab* s) { s->set_device(3); }), Code::kOk);
  EXPECT_NE(slab([](pb::Slab* s) { s->set_backing(pb::BACKING_IPC); }),
            Code::kOk);
  EXPECT_NE(slab([](pb::Slab* s) { s->set_backing(pb::Backing(77)); }),
            Code::kOk);
  EXPECT_NE(
      StageAgainstLease([](pb::Lease* l) { l->set_offset_bytes(62 * 1024); }),
      Code::kOk);
  EXPECT_NE(StageAgainstLease([](pb::Lease* l) { l->set_offset_bytes(~0ull); }),
            Code::kOk);
}

TEST(HostileDaemon, ALeaseOfSomethingElseIsRefusedAndGivenBack) {
  FakeDaemon* self = nullptr;
  FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                        const Fds&) {
    if (!message.has_stage()) return false;
    const int fd = self->slab_fd();
    pb::DaemonMessage reply = self->LeaseReply(message.request_id(), 0, true);
    reply.mutable_lease()->set_image_bytes(8192);
    peer.Send(reply, std::span(&fd, 1));
    return true;
  });
  self = &daemon;
  auto session = Connect(daemon);
  auto model = session->DescribeModel("m");
  EXPECT_EQ(session->Stage(*model, "a").status().code(), Code::kInternal);
  ASSERT_TRUE(session->DescribeModel("m").ok());
  EXPECT_EQ(daemon.released().size(), 1u);
}

TEST(HostileDaemon, AModelThatReachesOutsideItsImageIsRefused) {
  const auto describe = [](const std::function<void(pb::Model*)>& spoil) {
    FakeDaemon daemon(
        [&](Peer& peer, const pb::ClientMessage& message, const Fds&) {
          if (!message.has_describe_model()) return false;
          pb::DaemonMessage reply;
          reply.set_request_id(message.request_id());
          *reply.mutable_model() = FakeDaemon::ModelMessage();
          spoil(reply.mutable_model());
          peer.Send(reply);
          return true;
        });
    auto session = Connect(daemon);
    return session->DescribeModel("m").status().code();
  };
  const auto tensor = [&](const std::function<void(pb::Tensor*)>& spoil) {
    return describe([&](pb::Model* model) {
      spoil(model->mutable_groups(0)->mutable_tensors(0));
    });
  };
  EXPECT_EQ(describe([](pb::Model*) {}), Code::kOk);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_offset_bytes(4090); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_offset_bytes(~0ull); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_shape(0, 1ll << 62); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_shape(0, -2); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_shape(0, 400); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->set_dtype(pb::DType(99)); }),
            Code::kInternal);
  EXPECT_EQ(tensor([](pb::Tensor* t) { t->add_strides(3); }), Code::kInternal);
  EXPECT_EQ(describe([](pb::Model* m) { m->mutable_groups(1)->set_index(0); }),
            Code::kInternal);
  EXPECT_EQ(describe([](pb::Model* m) { m->mutable_groups(1)->set_name("a"); }),
            Code::kInternal);
  EXPECT_EQ(describe([](pb::Model* m) { m->set_fingerprint("short"); }),
            Code::kInternal);
}

TEST(HostileDaemon, AHalfSentHandshakeIsRefused) {
  const auto open = [](const std::function<void(pb::DaemonMessage*)>& spoil) {
    FakeDaemon* self = nullptr;
    FakeDaemon daemon(
        [&](Peer& peer, const pb::ClientMessage& message, const Fds&) {
          pb::DaemonMessage reply = self->OpenReply(message.request_id());
          spoil(&reply);
          peer.Send(reply);
          return true;
        });
    self = &daemon;
    return Connect(daemon).status().code();
  };
  EXPECT_EQ(open([](pb::DaemonMessage*) {}), Code::kOk);
  EXPECT_EQ(open([](pb::DaemonMessage* m) { m->clear_body(); }),
            Code::kInternal);
  EXPECT_EQ(open([](pb::DaemonMessage* m) {
              m->mutable_open_session()->clear_instance_id();
            }),
            Code::kInternal);
  EXPECT_EQ(open([](pb::DaemonMessage* m) {
              m->mutable_open_session()->mutable_devices(0)->clear_uuid();
            }),
            Code::kInternal);
  EXPECT_EQ(open([](pb::DaemonMessage* m) {
              auto* o = m->mutable_open_session();
              *o->add_devices() = o->devices(0);
            }),
            Code::kInternal);
  EXPECT_EQ(open([](pb::DaemonMessage* m) { m->set_code(9); }),
            Code::kFailedPrecondition);
}

// Flips bytes of a good reply; whatever comes of it, nothing crashes, hangs or
// leaks, and what is accepted can be read.
TEST(HostileDaemon, DamagedRepliesNeverCrash) {
  const uint32_t seed = 20;
  RecordProperty("seed", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const size_t before = OpenDescriptors();
    {
      FakeDaemon* self = nullptr;
      FakeDaemon daemon([&](Peer& peer, const pb::ClientMessage& message,
                            const Fds&) {
        if (!message.has_stage()) return false;
        std::string body =
            self->LeaseReply(message.request_id(), 0, true).SerializeAsString();
        for (int flips = 0; flips < 2; ++flips) {
          // The request's id stays, or there would be no answer.
          body[2 + random() % (body.size() - 2)] = static_cast<char>(random());
        }
        const int fd = self->slab_fd();
        peer.SendBody(body, std::span(&fd, 1));
        return true;
      });
      self = &daemon;
      auto session = Connect(daemon);
      auto model = session->DescribeModel("m");
      auto lease = session->Stage(*model, "a");
      if (lease.ok()) {
        const auto* bytes = static_cast<const volatile uint8_t*>(lease->data());
        for (size_t i = 0; i < lease->image_bytes(); i += 512) (void)bytes[i];
      }
    }
    ASSERT_EQ(OpenDescriptors(), before) << "round " << round;
  }
}

}  // namespace hoist_test::hostile_daemon_test
