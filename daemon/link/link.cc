#include "daemon/link/link.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "daemon/base/check.h"
#include "daemon/base/status.h"
#include "spdlog/spdlog.h"

namespace hoistd {
namespace {

constexpr int kLooksToHealth = 1 << 14;

}  // namespace

absl::StatusOr<std::unique_ptr<Link>> Link::Create(Device& device,
                                                   const Clock& clock,
                                                   const LinkOptions& options) {
  HOIST_ASSIGN_OR_RETURN(auto copies, CopyQueue::Create(device));
  hoist::UniqueFd command(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  hoist::UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!command.valid() || !epoll.valid()) {
    return ErrnoToStatus(errno, "make a link's descriptors");
  }
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {}};
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, command.get(), &event) != 0) {
    return ErrnoToStatus(errno, "watch a link's commands");
  }
  auto link =
      absl::WrapUnique(new Link(device, clock, options, std::move(copies),
                                std::move(command), std::move(epoll)));
  HOIST_ASSIGN_OR_RETURN(link->running_,
                         ThreadsOr(options.threads).Start(*link));
  return link;
}

Link::Link(Device& device, const Clock& clock, const LinkOptions& options,
           std::unique_ptr<CopyQueue> copies, hoist::UniqueFd command,
           hoist::UniqueFd epoll)
    : device_(device),
      clock_(clock),
      command_(std::move(command)),
      epoll_(std::move(epoll)),
      before_copy_(options.before_copy),
      load_rate_(options.load_bytes_per_second),
      copies_(std::move(copies)),
      trace_(options.trace, device.info().index),
      gaps_(options.trace, device.info().index),
      leases_(options.trace),
      background_(options.trace),
      reads_(options.trace) {
  Add(LinkParty::Leases(), {}, leases_);
  Add(LinkParty::Background(), {.max_bytes_per_second = load_rate_},
      background_);
  // Reads go the other way, so the cap on loads does not apply.
  Add(LinkParty::Reads(), {}, reads_);
}

Link::~Link() {
  Post([this] { stopping_ = true; });
  running_.reset();
  copies_.reset();  // Before the customers with the words its stream writes.
}

void Link::Copy(ImageLoad load) {
  auto job = std::make_shared<ImageQueue::Job>(std::move(load));
  Post([this, job = std::move(job)]() mutable {
    ImageQueue& queue = job->load.urgent ? leases_ : background_;
    queue.Add(std::move(job));
  });
}

void Link::Read(DeviceRead read) {
  auto job = std::make_shared<ReadQueue::Job>(std::move(read));
  Post([this, job = std::move(job)]() mutable { reads_.Add(std::move(job)); });
}

void Link::Hurry(TransferId id) {
  Post([this, id] {
    ImageQueue::JobPtr job = background_.Remove(id);
    if (job != nullptr) leases_.Add(std::move(job));
  });
}

void Link::GiveUpImages() {
  Post([this] { FailImages(); });
}

void Link::FailImages() {
  const absl::Status why = absl::UnavailableError("hoistd is stopping");
  leases_.Fail(why);
  background_.Fail(why);
  reads_.Fail(why);
}

void Link::SetLoadRate(uint64_t bytes_per_second) {
  load_rate_ = bytes_per_second;
  Post([this, bytes_per_second] {
    SetShare(LinkParty::Background(),
             {.max_bytes_per_second = bytes_per_second});
  });
}

void Link::Post(Command command) {
  {
    const absl::MutexLock lock(&mu_);
    commands_.push_back(std::move(command));
  }
  // The counter is never read: each write is an edge, and only 2^64 writes fill
  // it.
  const uint64_t one = 1;
  HOIST_CHECK(write(command_.get(), &one, sizeof(one)) == sizeof(one));
}

void Link::Add(LinkParty party, const ShareOptions& share,
               LinkCustomer& customer) {
  share_.Add(party, share);
  members_[party].customer = &customer;
}

void Link::AddGrants(LinkParty party, const ShareOptions& share,
                     GrantCustomer& customer) {
  Add(party, share, customer);
  members_[party].grants = &customer;
}

void Link::SetShare(LinkParty party, const ShareOptions& share) {
  share_.Set(party, share);
}

void Link::Remove(LinkParty party, Command gone) {
  members_.at(party).gone = std::move(gone);
  EndGrants(party, absl::CancelledError("it is closed"), clock_.Now());
}

absl::Status Link::Watch(int eventfd) {
  epoll_event event = {.events = EPOLLIN | EPOLLET, .data = {}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, eventfd, &event) != 0) {
    return ErrnoToStatus(errno, "watch an eventfd");
  }
  return absl::OkStatus();
}

void Link::Unwatch(int eventfd) {
  // Without this, a descriptor held elsewhere would keep it in the epoll set.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, eventfd, nullptr);
}

void Link::Begin() {
  // By default a nap of 1 us takes 50 us more; after a failure it still does.
  prctl(PR_SET_TIMERSLACK, 1);
}

absl::Duration Link::Turn() {
  if (std::exchange(sleeping_, false)) SetSleeping(false);
  if (stopping_) return LastTurns();
  gaps_.Woke();
  const absl::Duration rest = Work();
  if (gaps_.idle()) gaps_.Rests(WhyIdle(), rest);
  return rest;
}

absl::Duration Link::Work() {
  bool news = RunCommands();
  const absl::Time now = clock_.Now();
  news |= TakeEnded(now);
  news |= Look(now);
  news |= TakeGrants(now);
  news |= Fill(now);
  news |= Release();
  if (!news) return Rest(now);
  spins_ = 0;
  rested_ = absl::ZeroDuration();
  return absl::ZeroDuration();
}

// Starts no new copies; those in flight end before their targets do.
absl::Duration Link::LastTurns() {
  FailImages();
  RunCommands();
  EndGrants(std::nullopt, absl::UnavailableError("hoistd is stopping"),
            clock_.Now());
  if (copies_->under_way() > 0) {
    const absl::Time now = clock_.Now();
    if (!TakeEnded(now)) CheckHealth(now);
    return absl::Milliseconds(1);
  }
  Release();
  over_ = true;
  return absl::ZeroDuration();
}

bool Link::RunCommands() {
  std::vector<Command> commands;
  {
    const absl::MutexLock lock(&mu_);
    commands.swap(commands_);
  }
  for (Command& command : commands) std::move(command)();
  return !commands.empty();
}

bool Link::TakeEnded(absl::Time now) {
  const std::vector<CopyQueue::Queued> ended = copies_->Ended();
  // Detects errors even while customers keep this thread busy.
  looks_ = ended.empty() && copies_->under_way() > 0 ? looks_ + 1 : 0;
  if (looks_ >= kLooksToHealth) {
    looks_ = 0;
    CheckHealth(now);
  }
  trace_.Ended(ended, /*failed=*/false,
               gaps_.Did(TraceWhy::kDriver, Busy(), now));
  for (const CopyQueue::Queued& piece : ended) {
    if (!piece.party.reads) {
      copied_[static_cast<size_t>(piece.party.of)] += piece.bytes;
    }
    End(piece, absl::OkStatus(), now);
  }
  return !ended.empty();
}

void Link::End(const CopyQueue::Queued& piece, const absl::Status& status,
               absl::Time now) {
  Activity& activity = activity_[static_cast<size_t>(piece.party.of)];
  --activity.under_way;
  activity.bytes_under_way -= piece.bytes;
  activity.ended = now;
  size_t left = 0;
  for (const Activity& of : activity_) left += size_t(of.under_way);
  meter_.Ended(piece.party.of, piece.bytes, /*more=*/left > grants_.size(),
               now);
  Member& member = members_.at(piece.party);
  --member.under_way;
  member.customer->Ended(status, now);
}

bool Link::Look(absl::Time now) {
  bool news = false;
  for (auto& [party, member] : members_) news |= member.customer->Look(now);
  return news;
}

uint64_t Link::Room(LinkClass of, absl::Time now) const {
  absl::Time ended = absl::InfinitePast();
  for (const LinkClass other : {LinkClass::kPlans, LinkClass::kLeases}) {
    if (other >= of) break;
    if (Of(other).under_way > 0) return 0;
    ended = std::max(ended, Of(other).ended);
  }
  // At most an hour, so that the product is finite.
  const double idle = absl::ToDoubleSeconds(
      std::min<absl::Duration>(now - ended, absl::Hours(1)));
  constexpr uint64_t kMost = kPiecesUnderWay * kPieceBytes;
  return static_cast<uint64_t>(std::min(idle * meter_.Rate(), double(kMost)));
}

uint64_t Link::SizeOfNext(LinkClass of, absl::Time now) const {
  if (of == LinkClass::kPlans) return kPieceBytes;
  return std::clamp(Room(of, now) / kPiecesUnderWay, kSmallPieceBytes,
                    kPieceBytes);
}

bool Link::BackgroundMayGo(absl::Time now) const {
  constexpr LinkClass kThis = LinkClass::kBackground;
  if (share_.IsOwed(kThis)) return true;
  return now >= background_next_ &&
         Of(kThis).bytes_under_way + SizeOfNext(kThis, now) <= Room(kThis, now);
}

absl::Duration Link::PauseBesideReads(uint64_t bytes, absl::Time now) const {
  const double read = meter_.ReadRate(now) / meter_.Rate();
  if (read < 0.01) return absl::ZeroDuration();
  const double left = std::max(1 - read, kLeastBesideReads);
  return absl::Seconds(double(bytes) / meter_.Rate() / left);
}

void Link::ListReady(absl::Time now) {
  ready_.clear();
  no_room_ = false;
  for (auto& [party, member] : members_) {
    if (!member.customer->HasPiece()) continue;
    if (party.of == LinkClass::kBackground && !BackgroundMayGo(now)) {
      no_room_ = true;
    } else {
      ready_.push_back(party);
    }
  }
}

bool Link::Fill(absl::Time now) {
  bool news = false;
  held_back_ = false;
  while (copies_->under_way() + static_cast<int>(grants_.size()) <
         kPiecesUnderWay) {
    ListReady(now);
    if (ready_.empty()) break;
    const std::optional<LinkParty> next = share_.Pick(ready_, now);
    if (!next.has_value()) {
      held_back_ = true;
      next_turn_ = share_.NextTurn(ready_);
      break;
    }
    Queue(*next, now);
    news = true;
  }
  return news;
}

void Link::Queue(LinkParty party, absl::Time now) {
  Member& member = members_.at(party);
  LinkPiece piece = member.customer->TakePiece(SizeOfNext(party.of, now));
  const uint64_t bytes = piece.bytes;
  if (member.grants != nullptr) return Give(party, bytes, now);
  share_.Charge(party, bytes, now);
  const bool was_idle = copies_->under_way() == 0;
  Pin(piece);
  const absl::Status status = copies_->Add(party, std::move(piece), now);
  if (was_idle) meter_.Began(now);
  Count(party, bytes);
  TraceQueued(bytes);
  if (party.of == LinkClass::kBackground) {
    background_next_ = now + PauseBesideReads(bytes, now);
  }
  if (!status.ok()) member.customer->Refused(status);
}

void Link::Count(LinkParty party, uint64_t bytes) {
  Activity& activity = activity_[static_cast<size_t>(party.of)];
  ++activity.under_way;
  activity.bytes_under_way += bytes;
  ++members_.at(party).under_way;
}

bool Link::Release() {
  bool news = false;
  for (auto it = members_.begin(); it != members_.end();) {
    if (it->second.gone == nullptr || it->second.under_way > 0) {
      ++it;
      continue;
    }
    Command gone = std::move(it->second.gone);
    share_.Remove(it->first);
    it = members_.erase(it);
    std::move(gone)();
    news = true;
  }
  return news;
}

// After an error of the device its streams write no more words.
void Link::CheckHealth(absl::Time now) {
  const absl::Status health = copies_->Health();
  if (health.ok()) return;
  if (broken_.ok()) SPDLOG_ERROR("copies stop: {}", health.ToString());
  broken_ = Annotate(health, "copies to the device failed");
  const std::vector<CopyQueue::Queued> left = copies_->GiveUp();
  trace_.Ended(left, /*failed=*/true, now);
  for (const CopyQueue::Queued& piece : left) End(piece, broken_, now);
  EndGrants(std::nullopt, broken_, now);
  for (auto& [party, member] : members_) member.customer->Fail(broken_);
}

}  // namespace hoistd
