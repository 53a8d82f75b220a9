#include "daemon/keeper/keep.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/base/status.h"

namespace hoistd {
namespace {

constexpr char kIn[] = "-in";
constexpr char kOut[] = "-out";

std::string BookName() { return absl::StrCat(Keep::kPrefix, "book"); }

std::string EndName(uint64_t bundle, const char* end) {
  return absl::StrCat(Keep::kPrefix, bundle, end);
}

// The number of the bundle with an end of this name.
std::optional<uint64_t> BundleOf(absl::string_view name,
                                 absl::string_view end) {
  uint64_t number = 0;
  if (!absl::ConsumePrefix(&name, Keep::kPrefix) ||
      !absl::ConsumeSuffix(&name, end) || !absl::SimpleAtoi(name, &number)) {
    return std::nullopt;
  }
  return number;
}

}  // namespace

// Both ends of a bundle; invalid until found.
struct Keep::Ends {
  hoist::UniqueFd in;
  hoist::UniqueFd out;
};

absl::StatusOr<Keep> Keep::Create(FdStore& store, std::vector<HandedFd>& handed,
                                  Found& found, FoundDescriptor descriptor) {
  hoist::UniqueFd book_fd;
  std::map<uint64_t, Ends> ends;
  for (HandedFd& one : handed) {
    if (one.name == BookName()) book_fd = std::move(one.fd);
    if (const auto bundle = BundleOf(one.name, kIn)) {
      ends[*bundle].in = std::move(one.fd);
    }
    if (const auto bundle = BundleOf(one.name, kOut)) {
      ends[*bundle].out = std::move(one.fd);
    }
  }
  std::erase_if(handed, [](const HandedFd& one) { return !one.fd.valid(); });
  std::optional<PersistedBook> book;
  if (book_fd.valid()) {
    absl::StatusOr<PersistedBook> adopted =
        PersistedBook::Adopt(std::move(book_fd));
    if (adopted.ok()) {
      book = *std::move(adopted);
      for (const auto& [key, value] : book->entries()) {
        found.records[key] = value;
      }
    } else {
      found.notes.push_back(
          absl::StrCat("all that the last hoistd kept is dropped (memory of "
                       "the host and of devices, models, sessions with their "
                       "leases and plans, which end): ",
                       std::string(adopted.status().message())));
      store.Remove(BookName()).IgnoreError();
    }
  }
  const bool understood = book.has_value();
  if (!understood) {
    HOIST_ASSIGN_OR_RETURN(book, PersistedBook::Create());
    HOIST_RETURN_IF_ERROR(store.Store(BookName(), {book->fd()}));
  }
  Keep keep(store, *std::move(book));
  // Without the book the descriptors' meaning is lost.
  keep.AdoptBundles(std::move(ends), understood, found, descriptor);
  return keep;
}

void Keep::AdoptBundles(std::map<uint64_t, Ends> ends, bool understood,
                        Found& found, FoundDescriptor descriptor) {
  for (auto& [number, pair] : ends) {
    last_bundle_ = std::max(last_bundle_, number);
    absl::Status status = absl::OkStatus();
    if (understood) {
      absl::StatusOr<DescriptorBundle> bundle = DescriptorBundle::Adopt(
          std::move(pair.in), std::move(pair.out), descriptor);
      status = bundle.status();
      if (bundle.ok()) bundles_.emplace(number, *std::move(bundle));
    }
    if (understood && status.ok()) continue;
    if (!status.ok()) {
      found.notes.push_back(
          absl::StrCat("some of what the last hoistd kept is "
                       "dropped: ",
                       std::string(status.message())));
    }
    Forget(number);
  }
}

// The next hoistd ignores a name that stays.
void Keep::Forget(uint64_t bundle) {
  store_->Remove(EndName(bundle, kIn)).IgnoreError();
  store_->Remove(EndName(bundle, kOut)).IgnoreError();
}

absl::Status Keep::StoreAgain() {
  HOIST_RETURN_IF_ERROR(store_->Store(BookName(), {book_.fd()}));
  for (const auto& [number, bundle] : bundles_) {
    HOIST_RETURN_IF_ERROR(StoreBundle(number, bundle));
  }
  return absl::OkStatus();
}

absl::Status Keep::StoreBundle(uint64_t number,
                               const DescriptorBundle& bundle) {
  HOIST_RETURN_IF_ERROR(store_->Store(EndName(number, kIn), {bundle.in()}));
  return store_->Store(EndName(number, kOut), {bundle.out()});
}

absl::StatusOr<DescriptorBundle*> Keep::BundleWithRoom() {
  for (auto& [number, bundle] : bundles_) {
    if (!bundle.full()) return &bundle;
  }
  HOIST_ASSIGN_OR_RETURN(DescriptorBundle bundle, DescriptorBundle::Create());
  const uint64_t number = ++last_bundle_;
  const absl::Status stored = StoreBundle(number, bundle);
  if (!stored.ok()) {
    Forget(number);
    return stored;
  }
  return &bundles_.emplace(number, std::move(bundle)).first->second;
}

absl::Status Keep::KeepDescriptor(PersistedKey key, int fd) {
  HOIST_ASSIGN_OR_RETURN(DescriptorBundle * bundle, BundleWithRoom());
  return bundle->Add(key, fd);
}

absl::Status Keep::DropDescriptor(PersistedKey key) {
  for (auto& [number, bundle] : bundles_) {
    if (!bundle.Has(key)) continue;
    HOIST_RETURN_IF_ERROR(bundle.Remove(key));
    ForgetEmpty();
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Keep::DropDescriptors(
    absl::FunctionRef<bool(PersistedKey)> meant) {
  for (auto& [number, bundle] : bundles_) {
    HOIST_RETURN_IF_ERROR(bundle.RemoveIf(meant));
  }
  ForgetEmpty();
  return absl::OkStatus();
}

// Keeps one empty bundle for the next descriptor.
void Keep::ForgetEmpty() {
  for (auto it = bundles_.begin(); it != bundles_.end();) {
    if (!it->second.empty() || bundles_.size() == 1) {
      ++it;
      continue;
    }
    Forget(it->first);
    it = bundles_.erase(it);
  }
}

}  // namespace hoistd
