#include "tests/unit/client/fake_in_place.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hoist/shared/packet_socket.h"

namespace hoist_test {
namespace {

constexpr uint64_t kModel = 9;
constexpr int kResourceExhausted = 8;
constexpr uint64_t kSpan = uint64_t{2} << 30;

uint64_t ImageBytes(uint32_t group) {
  if (group < FakeInPlace::kPieces) return FakeInPlace::kPiece;
  if (group == FakeInPlace::kTail) return FakeInPlace::kPiece + 4096;
  return group == FakeInPlace::kCrumb ? 4096 : FakeInPlace::kPiece;
}

void AddBytes(pb::Group* group, uint64_t offset, uint64_t bytes) {
  pb::Tensor* tensor = group->add_tensors();
  tensor->set_name("w" + group->name() + std::to_string(offset));
  tensor->set_dtype(pb::DTYPE_U8);
  tensor->add_shape(static_cast<int64_t>(bytes));
  tensor->set_offset_bytes(offset);
  tensor->set_size_bytes(bytes);
}

pb::Model MoeMessage() {
  pb::Model model;
  model.set_id(kModel);
  model.set_name("moe");
  model.set_fingerprint(std::string(16, 'e'));
  for (uint32_t g = 0; g < FakeInPlace::kGroups; ++g) {
    pb::Group* group = model.add_groups();
    group->set_name("p" + std::to_string(g));
    group->set_index(g);
    group->set_image_bytes(ImageBytes(g));
    model.set_image_bytes(model.image_bytes() + ImageBytes(g));
    const bool holed = g == FakeInPlace::kHoled;
    const uint64_t gap = holed || g == FakeInPlace::kShort ? 64 : 0;
    AddBytes(group, 0, holed ? 4096 : ImageBytes(g) - gap);
    if (holed) AddBytes(group, 4096 + gap, ImageBytes(g) - 4096 - gap);
  }
  return model;
}

}  // namespace

void FakeInPlace::SetNoInPlace(std::string why) {
  const std::lock_guard<std::mutex> lock(mu_);
  has_in_place_ = false;
  no_in_place_ = std::move(why);
}

void FakeInPlace::SetRoom(uint32_t device, size_t copies) {
  const std::lock_guard<std::mutex> lock(mu_);
  room_[device] = copies;
}

void FakeInPlace::Hold(uint32_t device, bool holds) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (holds) {
    holding_.insert(device);
  } else {
    holding_.erase(device);
  }
}

void FakeInPlace::LetOneCome() {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return !held_.empty(); });
  const Held held = std::move(held_.front());
  held_.pop_front();
  Stage(*held.peer, held.message);
}

void FakeInPlace::LetAllCome() {
  const std::lock_guard<std::mutex> lock(mu_);
  for (; !held_.empty(); held_.pop_front()) {
    Stage(*held_.front().peer, held_.front().message);
  }
}

void FakeInPlace::AwaitStages(uint32_t device, size_t count) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return stages_[device].size() >= count; });
}

void FakeInPlace::Resume() {
  const std::lock_guard<std::mutex> lock(mu_);
  held_.clear();
  pb::DaemonMessage resumed;
  resumed.mutable_resumed()->set_number(++resumed_);
  last_peer_->Send(resumed);
}

void FakeInPlace::SetHeat(pb::Heat heat) {
  const std::lock_guard<std::mutex> lock(mu_);
  heat_ = std::move(heat);
}

void FakeInPlace::SetHeatSilent() {
  const std::lock_guard<std::mutex> lock(mu_);
  heat_silent_ = true;
}

void FakeInPlace::AwaitHeats(size_t count) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return heats_ >= count; });
}

void FakeInPlace::SendAnOddSlab() {
  const std::lock_guard<std::mutex> lock(mu_);
  odd_slab_ = true;
}

void FakeInPlace::HangUp() {
  const std::lock_guard<std::mutex> lock(mu_);
  last_peer_->HangUp();
}

size_t FakeInPlace::stages(uint32_t device) {
  const std::lock_guard<std::mutex> lock(mu_);
  return stages_[device].size();
}

pb::StageRequest FakeInPlace::stage(uint32_t device, size_t n) {
  const std::lock_guard<std::mutex> lock(mu_);
  return stages_[device].at(n);
}

std::multiset<uint32_t> FakeInPlace::leased(uint32_t device) {
  const std::lock_guard<std::mutex> lock(mu_);
  return LeasedNow(device);
}

size_t FakeInPlace::most_leased(uint32_t device) {
  const std::lock_guard<std::mutex> lock(mu_);
  return most_[device];
}

void FakeInPlace::AwaitLeased(uint32_t device,
                              const std::multiset<uint32_t>& groups) {
  std::unique_lock<std::mutex> lock(mu_);
  changed_.wait(lock, [&] { return LeasedNow(device) == groups; });
}

std::multiset<uint32_t> FakeInPlace::LeasedNow(uint32_t device) const {
  std::multiset<uint32_t> groups;
  for (const auto& [id, of] : leases_) {
    if (of.first == device) groups.insert(of.second);
  }
  return groups;
}

bool FakeInPlace::Do(Peer& peer, const pb::ClientMessage& message,
                     const std::vector<int>&) {
  const std::lock_guard<std::mutex> lock(mu_);
  last_peer_ = &peer;
  pb::DaemonMessage reply;
  reply.set_request_id(message.request_id());
  if (message.has_open_session()) {
    Open(peer, message);
    return true;
  }
  if (message.has_resume()) {
    *reply.mutable_resume() = pb::ResumeReply();
    peer.Send(reply);
    return true;
  }
  if (message.has_describe_model() &&
      message.describe_model().name() == "moe") {
    *reply.mutable_model() = MoeMessage();
    peer.Send(reply);
    return true;
  }
  if (message.has_heat()) {
    *reply.mutable_heat() = heat_;
    if (!heat_silent_) peer.Send(reply);
    ++heats_;
    changed_.notify_all();
    return true;
  }
  if (message.has_release()) {
    for (const uint64_t id : message.release().lease_ids()) leases_.erase(id);
    changed_.notify_all();
    return false;
  }
  if (!message.has_stage()) return false;
  const uint32_t device = message.stage().device();
  stages_[device].push_back(message.stage());
  if (holding_.contains(device)) {
    held_.push_back({&peer, message});
  } else {
    Stage(peer, message);
  }
  changed_.notify_all();
  return true;
}

void FakeInPlace::Open(Peer& peer, const pb::ClientMessage& message) {
  pb::DaemonMessage reply = daemon_.OpenReply(message.request_id());
  pb::OpenSessionReply* open = reply.mutable_open_session();
  open->mutable_devices(0)->set_span_bytes(kSpan);
  if (has_in_place_) {
    pb::Device* in_place = open->mutable_in_place();
    *in_place = open->devices(0);
    in_place->set_index(kInPlace);
    in_place->set_name("in place");
    in_place->set_uuid(std::string(16, 'i'));
    in_place->set_kind(pb::DEVICE_KIND_IN_PLACE);
  } else {
    open->set_no_in_place(no_in_place_);
  }
  peer.Send(reply);
}

void FakeInPlace::Stage(Peer& peer, const pb::ClientMessage& message) {
  const pb::StageRequest& stage = message.stage();
  pb::DaemonMessage reply;
  reply.set_request_id(message.request_id());
  const auto room = room_.find(stage.device());
  const auto leased = static_cast<size_t>(std::count_if(
      leases_.begin(), leases_.end(),
      [&](const auto& lease) { return lease.second.first == stage.device(); }));
  if (room != room_.end() && leased >= room->second) {
    reply.set_code(kResourceExhausted);
    reply.set_message("no room for it");
    peer.Send(reply);
    return;
  }
  uint64_t bytes = (ImageBytes(stage.group()) + kPiece - 1) / kPiece * kPiece;
  if (std::exchange(odd_slab_, false)) bytes += kPiece;
  Slab& slab = SlabOf(stage.device(), stage.group(), bytes);
  pb::Lease* lease = reply.mutable_lease();
  lease->set_id(++last_lease_);
  lease->set_model_id(stage.model_id());
  lease->set_group(stage.group());
  lease->set_device(stage.device());
  lease->set_offset_bytes(slab.offset);
  lease->set_image_bytes(ImageBytes(stage.group()));
  lease->set_apart(true);
  leases_[lease->id()] = {stage.device(), stage.group()};
  most_[stage.device()] = std::max(most_[stage.device()], leased + 1);
  changed_.notify_all();
  const bool is_new = slab.sent.insert(&peer).second;
  if (is_new) {
    pb::Slab* sent = lease->add_slabs();
    sent->set_id(slab.id);
    sent->set_device(stage.device());
    sent->set_offset_bytes(slab.offset);
    sent->set_size_bytes(slab.bytes);
    sent->set_backing(pb::BACKING_MEMFD);
    sent->set_apart(true);
  }
  const int fd = slab.fd.get();
  peer.Send(reply, {&fd, is_new ? 1u : 0u});
}

FakeInPlace::Slab& FakeInPlace::SlabOf(uint32_t device, uint32_t group,
                                       uint64_t bytes) {
  Slab& slab = slabs_[{device, group}];
  if (slab.fd.valid()) return slab;
  slab.id = ++last_slab_;
  slab.offset = last_slab_ * 3 * kPiece;
  slab.bytes = bytes;
  slab.fd = hoist::CreateMemfd("fake-piece", bytes).value();
  const std::string image(ImageBytes(group),
                          static_cast<char>(PieceByte(group)));
  if (pwrite(slab.fd.get(), image.data(), image.size(), 0) < 0) {
    std::perror("pwrite");
  }
  return slab;
}

}  // namespace hoist_test
