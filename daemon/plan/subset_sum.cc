#include "daemon/plan/subset_sum.h"

#include <algorithm>
#include <bit>

#include "daemon/base/check.h"

namespace hoistd {

SubsetSums::SubsetSums(uint64_t limit)
    : limit_(limit), reachable_(limit / 64 + 1), made_by_(limit + 1) {
  reachable_[0] = 1;
}

void SubsetSums::Add(uint64_t item) {
  HOIST_CHECK(item > 0);
  const auto number = static_cast<uint32_t>(items_.size());
  items_.push_back(item);
  const size_t words = item / 64;
  const unsigned bits = item % 64;
  // From the top down: each word is read before its change, so the item counts
  // once.
  for (size_t i = reachable_.size(); i-- > words;) {
    const size_t from = i - words;
    uint64_t shifted = reachable_[from] << bits;
    if (bits > 0 && from > 0) shifted |= reachable_[from - 1] >> (64 - bits);
    uint64_t added = shifted & ~reachable_[i];
    for (uint64_t rest = added; rest != 0; rest &= rest - 1) {
      const uint64_t sum = i * 64 + std::countr_zero(rest);
      if (sum > limit_) {
        added &= (rest & -rest) - 1;
        break;
      }
      made_by_[sum] = number;
    }
    reachable_[i] |= added;
  }
}

uint64_t SubsetSums::LargestUpTo(uint64_t limit) const {
  limit = std::min(limit, limit_);
  size_t i = limit / 64;
  uint64_t word = reachable_[i] & (~uint64_t{0} >> (63 - limit % 64));
  while (word == 0) word = reachable_[--i];  // Sum 0 ends the loop.
  return i * 64 + 63 - std::countl_zero(word);
}

std::vector<uint32_t> SubsetSums::ItemsOf(uint64_t sum) const {
  std::vector<uint32_t> numbers;
  while (sum > 0) {
    HOIST_CHECK(sum <= limit_ && ((reachable_[sum / 64] >> (sum % 64)) & 1));
    numbers.push_back(made_by_[sum]);
    sum -= items_[made_by_[sum]];
  }
  return numbers;
}

}  // namespace hoistd
