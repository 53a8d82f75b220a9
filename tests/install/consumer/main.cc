// Uses hoist.h as C++17: no daemon listens, which must be said.
#include <hoist/hoist.h>

#include <iostream>

int main() {
  hoist::ConnectOptions options;
  options.socket_path = "/nonexistent/hoistd.sock";
  hoist::Result<hoist::Session> session = hoist::Session::Connect(options);
  std::cout << hoist_version() << ": " << session.status().ToString() << "\n";
  return session.status().code() == hoist::Code::kUnavailable ? 0 : 1;
}
