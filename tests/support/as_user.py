"""Work done as another user, in a child of root's."""

import os
import traceback


def start_as(uid, work):
    """A child of that uid that runs work(tell); (pid, pipe of what it says)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, open(read, encoding="utf-8")
    code = 1
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        work(lambda text: os.write(write, f"{text}\n".encode()))
        code = 0
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    os._exit(code)
