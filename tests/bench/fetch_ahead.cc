#include "tests/bench/fetch_ahead.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

namespace hoist::bench {
namespace {

constexpr double kNothing = 1;  // Bytes: less is a rounding error.
constexpr double kKept = 0.99;  // Of a count of guesses, from layer to layer.

class Decode {
 public:
  Decode(const FetchTimes& times, size_t places)
      : times_(times), places_(places) {}

  void Foresee(size_t number, const FetchLayer& layer) {
    if (right_ < times_.least_right * guessed_) return;
    for (const uint32_t expert : layer.foreseen) {
      queue_.push_back({number, expert, times_.expert_bytes});
    }
  }

  void Run(size_t number, const FetchLayer& layer) {
    CopyFor(times_.attention);
    const double cold =
        static_cast<double>(AnswerOf(number, layer)) * times_.expert_bytes;
    result_.in_place_bytes += cold;
    ReadInPlace(cold);
    CopyFor(times_.experts);
    held_.erase(number);
  }

  const FetchResult& result() const { return result_; }

 private:
  struct Copy {
    size_t layer = 0;
    uint32_t expert = 0;
    double left = 0;  // Bytes.
  };

  bool Started(const Copy& copy) const {
    return copy.left < times_.expert_bytes;
  }

  // Bytes left of the first copy's piece under way.
  double PieceLeft() const {
    const double left = std::fmod(queue_.front().left, times_.piece_bytes);
    return left < kNothing || times_.piece_bytes - left < kNothing ? 0 : left;
  }

  // Whether the first copy has a place, its own or a new one.
  bool HasPlace() {
    if (Started(queue_.front())) return true;
    size_t taken = 0;
    for (const auto& [layer, experts] : held_) taken += experts.size();
    if (taken == places_) return false;
    held_[queue_.front().layer].push_back(queue_.front().expert);
    result_.places = std::max(result_.places, taken + 1);
    return true;
  }

  void CopyBytes(double bytes) {
    queue_.front().left -= bytes;
    if (queue_.front().left < kNothing) queue_.pop_front();
  }

  void CopyFor(double seconds) {
    result_.seconds += seconds;
    double bytes = seconds * times_.link;
    const double lost = std::min(bytes, lost_);
    lost_ -= lost;
    bytes -= lost;
    while (bytes > kNothing && !queue_.empty() && HasPlace()) {
      const double step = std::min(bytes, queue_.front().left);
      bytes -= step;
      CopyBytes(step);
    }
  }

  void ReadInPlace(double bytes) {
    const bool started = !queue_.empty() && Started(queue_.front());
    const double piece = started ? PieceLeft() : lost_;
    const double copy_rate = times_.link * times_.copy_share;
    const double read_rate = times_.in_place * (1 - times_.copy_share);
    const double shared = std::min(piece / copy_rate, bytes / read_rate);
    const double copied = shared * copy_rate;
    if (started) {
      CopyBytes(copied);
    } else {
      lost_ -= copied;
    }
    const double alone = bytes - shared * read_rate;
    result_.seconds += shared + alone / times_.in_place;
  }

  // Ends the layer's copies, and returns the number of experts that have none.
  size_t AnswerOf(size_t number, const FetchLayer& layer) {
    const auto is_read = [&](uint32_t expert) {
      return std::ranges::count(layer.reads, expert) > 0;
    };
    auto fetched =
        static_cast<size_t>(std::ranges::count_if(held_[number], is_read));
    size_t strays = held_[number].size() - fetched;
    if (!queue_.empty() && queue_.front().layer == number &&
        Started(queue_.front())) {
      const Copy& late = queue_.front();
      if (!is_read(late.expert)) {
        --strays;
        LoseFirst();
      } else if (times_.waits) {
        result_.seconds += late.left / times_.link;
      } else {
        --fetched;
        LoseFirst();
      }
    }
    std::erase_if(queue_,
                  [&](const Copy& copy) { return copy.layer == number; });
    guessed_ = kKept * guessed_ + static_cast<double>(layer.foreseen.size());
    right_ = kKept * right_ + static_cast<double>(std::ranges::count_if(
                                  layer.foreseen, is_read));
    result_.used_bytes += static_cast<double>(fetched) * times_.expert_bytes;
    result_.wasted_bytes += static_cast<double>(strays) * times_.expert_bytes;
    return layer.reads.size() - fetched;
  }

  // Only its piece under way is still copied.
  void LoseFirst() {
    lost_ = PieceLeft();
    result_.wasted_bytes += times_.expert_bytes - queue_.front().left + lost_;
  }

  const FetchTimes& times_;
  const size_t places_;
  std::deque<Copy> queue_;  // The first may have started.
  double lost_ = 0;         // Of a piece that nobody will read.
  std::map<size_t, std::vector<uint32_t>> held_;  // Places, by layer.
  double guessed_ = 0;  // Lately, and those of them that were read.
  double right_ = 0;
  FetchResult result_;
};

}  // namespace

FetchResult FetchAhead(std::span<const FetchLayer> layers,
                       const FetchTimes& times, size_t places) {
  Decode decode(times, places);
  size_t known = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (; known < layers.size() && layers[known].known_at <= i; ++known) {
      decode.Foresee(known, layers[known]);
    }
    decode.Run(i, layers[i]);
  }
  return decode.result();
}

}  // namespace hoist::bench
