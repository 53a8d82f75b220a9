// Waiting for one asynchronous answer.
#ifndef HOIST_TESTS_SUPPORT_IO_WAIT_H_
#define HOIST_TESTS_SUPPORT_IO_WAIT_H_

#include <future>
#include <utility>

#include "absl/status/status.h"
#include "daemon/types/io_engine.h"

namespace hoistd::testing {

// Turns a `done` callback into a future: pass done() once.
template <typename T>
class Answer {
 public:
  auto done() {
    return [promise = std::move(promise_)](T value) mutable {
      promise.set_value(std::move(value));
    };
  }
  T Wait() { return future_.get(); }

 private:
  std::promise<T> promise_;
  std::future<T> future_ = promise_.get_future();
};

inline absl::Status ReadAndWait(IoEngine& engine, ReadRequest request) {
  Answer<absl::Status> answer;
  engine.Read(std::move(request), answer.done());
  return answer.Wait();
}

inline absl::Status WriteAndWait(IoEngine& engine, WriteRequest request) {
  Answer<absl::Status> answer;
  engine.Write(std::move(request), answer.done());
  return answer.Wait();
}

}  // namespace hoistd::testing

#endif  // HOIST_TESTS_SUPPORT_IO_WAIT_H_
