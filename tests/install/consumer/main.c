/* Uses hoist_c.h as C99. */
#include <hoist/hoist_c.h>
#include <stdio.h>

int main(void) {
  hoist_session* session = NULL;
  hoist_error* error = NULL;
  hoist_connect_options options = {0};
  options.struct_size = sizeof(options);
  options.socket_path = "/nonexistent/hoistd.sock";
  const int code = hoist_connect(&options, &session, &error);
  printf("%s: %s\n", hoist_code_name(code), hoist_error_message(error));
  hoist_error_free(error);
  return code == HOIST_UNAVAILABLE ? 0 : 1;
}
