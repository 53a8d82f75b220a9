#include "daemon/core/pageable_book.h"

#include <algorithm>

#include "daemon/base/check.h"

namespace hoistd {
namespace {

bool IsThere(PageableBook::State state) {
  return state == PageableBook::State::kThere ||
         state == PageableBook::State::kOnly;
}

}  // namespace

bool PageableBook::Place(GroupKey key, uint64_t bytes, absl::Time now) {
  if (bytes > memory_.bytes() || now < retry_at_) return false;
  HOIST_CHECK(!images_.contains(key));
  const OwnerId owner(++last_owner_);
  std::optional<uint64_t> offset = memory_.Allocate(bytes, owner);
  if (!offset.has_value()) {
    const auto worth = [&](OwnerId other) -> std::optional<double> {
      const auto of = keys_.find(other);
      if (of == keys_.end() || read_.contains(of->second)) return std::nullopt;
      const Image& image = images_.at(of->second);
      if (image.state != State::kThere) return std::nullopt;
      const double age = absl::ToDoubleSeconds(now - image.since);
      return static_cast<double>(image.bytes) / std::max(age, 1e-3);
    };
    const std::optional<Hole> hole = memory_.CheapestHole(bytes, 0, worth);
    if (!hole.has_value()) return false;
    for (const OwnerId victim : hole->victims) {
      const GroupKey gone = keys_.at(victim);
      Drop(gone);
    }
    offset = memory_.Allocate(bytes, owner);
    HOIST_CHECK(offset.has_value());
  }
  images_[key] = {owner, *offset, bytes, State::kComing, now};
  keys_[owner] = key;
  return true;
}

void PageableBook::Came(GroupKey key) {
  Image& image = images_.at(key);
  if (image.state == State::kUnwanted) return Drop(key);
  HOIST_CHECK(image.state == State::kComing);
  image.state = State::kThere;
}

std::optional<uint64_t> PageableBook::Take(GroupKey key) {
  const auto found = images_.find(key);
  if (found == images_.end() || !IsThere(found->second.state)) {
    return std::nullopt;
  }
  found->second.state = State::kGoing;
  return found->second.offset;
}

void PageableBook::Drop(GroupKey key) {
  const auto found = images_.find(key);
  HOIST_CHECK(found != images_.end());
  const Image image = found->second;
  keys_.erase(image.owner);
  images_.erase(found);
  const auto read = read_.find(key);
  if (read == read_.end() || read->second.owner != image.owner) {
    memory_.Free(image.offset);
  }
}

bool PageableBook::Evict(GroupKey key) {
  const auto found = images_.find(key);
  if (found == images_.end()) return false;
  State& state = found->second.state;
  if (state == State::kComing) state = State::kUnwanted;
  if (state != State::kThere) return false;
  Drop(key);
  return true;
}

void PageableBook::Forget(GroupKey key) {
  if (Has(key)) return Drop(key);
  Evict(key);
}

bool PageableBook::KeepOnly(GroupKey key) {
  const auto found = images_.find(key);
  if (found == images_.end()) return false;
  State& state = found->second.state;
  if (state == State::kThere) state = State::kOnly;
  return state == State::kOnly || state == State::kGoing;
}

std::optional<uint64_t> PageableBook::Read(GroupKey key) {
  if (!Has(key)) return std::nullopt;
  const Image& image = images_.at(key);
  HOIST_CHECK(read_.emplace(key, image).second);
  return image.offset;
}

void PageableBook::EndRead(GroupKey key) {
  const Image read = read_.extract(key).mapped();
  if (!keys_.contains(read.owner)) memory_.Free(read.offset);
}

const PageableBook::Image* PageableBook::Find(GroupKey key) const {
  const auto found = images_.find(key);
  return found == images_.end() ? nullptr : &found->second;
}

bool PageableBook::Has(GroupKey key) const {
  const Image* image = Find(key);
  return image != nullptr && IsThere(image->state);
}

}  // namespace hoistd
