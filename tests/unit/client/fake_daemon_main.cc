// A fake daemon for tests in other languages: prints its socket's path, and
// serves until its standard input ends. Streamed groups are always ready.
#include <unistd.h>

#include <atomic>
#include <iostream>

#include "tests/unit/client/fake_daemon.h"

int main() {
  using hoist_test::FakeDaemon;
  std::atomic<FakeDaemon*> self{nullptr};
  FakeDaemon daemon([&self](hoist_test::Peer& peer,
                            const hoist_test::pb::ClientMessage& message,
                            const std::vector<int>&) {
    if (!message.has_set_plan()) return false;
    FakeDaemon& on = *self.load();
    const auto reply = on.PlanReply(message.request_id(), message.set_plan());
    on.lane(on.lanes() - 1).ReadyForAll();
    peer.Send(reply, on.PlanFds());
    return true;
  });
  self = &daemon;
  daemon.PlanAs({.residents = {0}});
  std::cout << daemon.path() << std::endl;
  char end;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  return 0;
}
