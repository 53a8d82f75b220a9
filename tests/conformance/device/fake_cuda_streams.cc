#include "tests/conformance/device/fake_cuda_streams.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace fake_cuda {
namespace {

constexpr int kNotReady = 600;

}  // namespace

std::shared_ptr<Streams::Stream> Streams::Find(void* stream) {
  std::shared_ptr<Stream>& found = streams_[stream];
  if (!found) found = std::make_shared<Stream>();
  return found;
}

int Streams::Add(void* stream, Step step) {
  const std::shared_ptr<Stream> s = Find(stream);
  if (s->error != 0) return s->error;
  ++s->queued;
  if (s->steps.empty() && !step.host && (!step.ready || step.ready())) {
    ++s->finished;
    return step.run ? step.run() : 0;
  }
  s->steps.push_back(std::move(step));
  if (std::ranges::find(waiting_, s) == waiting_.end()) waiting_.push_back(s);
  if (!started_) {
    started_ = true;
    std::thread([this] { Run(); }).detach();
  }
  changed_.notify_all();
  return 0;
}

bool Streams::Pump(std::unique_lock<std::mutex>& lock) {
  // A copy: while a host function runs, others add to it.
  const std::vector<std::shared_ptr<Stream>> all = waiting_;
  for (const std::shared_ptr<Stream>& s : all) {
    while (!s->steps.empty()) {
      Step& step = s->steps.front();
      if (step.ready && !step.ready()) break;
      if (step.host) {
        const std::function<void()> host = step.host;
        lock.unlock();
        host();
        lock.lock();
      } else if (step.run && s->error == 0) {
        s->error = step.run();
      }
      s->steps.pop_front();
      ++s->finished;
      changed_.notify_all();
    }
  }
  std::erase_if(waiting_, [](const auto& s) { return s->steps.empty(); });
  return !waiting_.empty();
}

void Streams::Run() {
  std::unique_lock lock(mu_);
  while (true) {
    if (Pump(lock)) {
      // What it waits for is a word that anybody may write.
      changed_.wait_for(lock, std::chrono::microseconds(50));
    } else {
      changed_.wait(lock);
    }
  }
}

int Streams::Query(void* stream) {
  const std::shared_ptr<Stream> s = Find(stream);
  if (s->error != 0) return s->error;
  return s->steps.empty() ? 0 : kNotReady;
}

int Streams::Sync(std::unique_lock<std::mutex>& lock, void* stream) {
  const std::shared_ptr<Stream> s = Find(stream);
  changed_.wait(lock, [&] { return s->steps.empty(); });
  return s->error;
}

void Streams::SyncAll(std::unique_lock<std::mutex>& lock) {
  changed_.wait(lock, [&] {
    return std::ranges::all_of(
        streams_, [](const auto& s) { return s.second->steps.empty(); });
  });
}

void Streams::Record(void* event, void* stream) {
  const std::shared_ptr<Stream> s = Find(stream);
  events_[event] = {s, s->queued};
}

int Streams::SyncEvent(std::unique_lock<std::mutex>& lock, void* event) {
  const Mark mark = events_[event];
  changed_.wait(lock, [&] { return mark.reached(); });
  return mark.stream ? mark.stream->error : 0;
}

void Streams::WaitEvent(void* stream, void* event) {
  const Mark mark = events_[event];
  Add(stream, {.ready = [mark] { return mark.reached(); }});
}

}  // namespace fake_cuda
