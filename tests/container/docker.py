#!/usr/bin/env python3
"""The part of `docker` that the READMEs use, made of buildah and runc.

It lies as "docker" on the PATH of tests, so that their commands run as they
stand. Images and containers live in $HOIST_DOCKER_HOME; no daemon, no registry:
`docker import-root FOLDER NAME` makes an image of a root. Real are the build,
the namespaces, the user, capabilities, limits, mounts and seccomp; there is no
network.
"""

import argparse
import json
import os
import pathlib
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import time

HOME = pathlib.Path(os.environ.get("HOIST_DOCKER_HOME", "/nowhere"))
BUILDAH = ["buildah", "--root", HOME / "images", "--runroot", HOME / "run",
           "--storage-driver", "overlay"]
RUNC = ["runc", "--root", HOME / "runc"]
DEFAULT_CAPS = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID",
                "SETUID", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "MKNOD",
                "AUDIT_WRITE", "SETFCAP"]
CAP_SYS_RESOURCE = 24
MASKED = ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/timer_list",
          "/proc/sched_debug", "/proc/scsi", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
             "/proc/sysrq-trigger"]


def buildah(*arguments, **options):
    return subprocess.run([*BUILDAH, *arguments], check=True, text=True,
                          stdout=subprocess.PIPE, **options).stdout.strip()


def image_config(image):
    """{"Entrypoint": ..., "User": ...} as the image has it."""
    said = json.loads(buildah("inspect", "--type", "image", image))
    return said["Docker"]["config"]


def import_root(arguments):
    folder, name, *settings = arguments
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, folder, "/")
    if settings:
        buildah("config", *settings, container)
    buildah("commit", "--quiet", "--format", "docker", container, name,
            stderr=subprocess.DEVNULL)
    buildah("rm", container)


def build(arguments):
    os.execvp("buildah", [str(word) for word in [
        *BUILDAH, "bud", "--quiet", "--format", "docker", "--isolation",
        "chroot", *arguments]])


def mount(kind, target, *options, source=None):
    return {"destination": target, "type": kind, "source": source or kind,
            "options": list(options)}


def mounts_of(options):
    dev = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]
    found = [mount("proc", "/proc"),
             mount("tmpfs", "/dev", "nosuid", "mode=755", "size=65536k"),
             mount("devpts", "/dev/pts", *dev),
             mount("tmpfs", "/dev/shm", "nosuid", "nodev", "mode=1777",
                   "size=64m", source="shm"),
             mount("sysfs", "/sys", "nosuid", "noexec", "nodev", "ro")]
    for tmpfs in options.tmpfs:
        target, _, more = tmpfs.partition(":")
        found.append(mount("tmpfs", target, "nosuid", "nodev",
                           *(more.split(",") if more else ["mode=1777"])))
    for volume in options.volume:
        source, target, *how = volume.split(":")
        found.append(mount("bind", target, "rbind", *(how or ["rw"]),
                           source=source))
    return found


def user_of(options, config, root):
    uid, _, gid = (options.user or config.get("User") or "0:0").partition(":")
    groups = {line.split(":")[0]: int(line.split(":")[2]) for line in
              (root / "etc/group").read_text().splitlines()}
    added = [groups[name] if name in groups else int(name)
             for name in options.group_add]
    return {"uid": int(uid), "gid": int(gid or 0), "additionalGids": added}


def limits_of(options):
    """As far as this process may set them: a guest may not raise its own."""
    found = []
    for limit in options.ulimit:
        name, value = limit.split("=")
        kind = "RLIMIT_" + name.upper()
        wanted = int(value) % 2**64  # -1: none.
        hard = resource.getrlimit(getattr(resource, kind))[1] % 2**64
        if wanted > hard and not may_raise():
            wanted = hard
        found.append({"type": kind, "soft": wanted, "hard": wanted})
    return found


def may_raise():
    caps = re.search(r"CapEff:\t(\w+)",
                     pathlib.Path("/proc/self/status").read_text())
    return bool(int(caps.group(1), 16) >> CAP_SYS_RESOURCE & 1)


def seccomp_of(options):
    for option in options.security_opt:
        if option.startswith("seccomp="):
            profile = json.loads(pathlib.Path(option[8:]).read_text())
            for rule in profile["syscalls"]:
                rule.pop("comment", None)
            return profile
    return None


def capabilities_of(options):
    kept = set() if "ALL" in options.cap_drop else set(DEFAULT_CAPS)
    kept |= set(options.cap_add)
    return ["CAP_" + name for name in sorted(kept)]


def spec(options, config, root):
    command = shlex.split(options.entrypoint) if options.entrypoint else (
        config.get("Entrypoint") or [])
    command += options.command or (
        [] if options.entrypoint else config.get("Cmd") or [])
    user = user_of(options, config, root)
    caps = capabilities_of(options)
    # As Docker does: for another user than root they are only the bound.
    mine = caps if user["uid"] == 0 else []
    linux = {"namespaces": [{"type": kind} for kind in
                            ("pid", "mount", "ipc", "uts", "network")],
             "maskedPaths": MASKED, "readonlyPaths": READ_ONLY}
    if options.pid == "host":
        linux["namespaces"].pop(0)
    elif options.pid:
        of = state(options.pid.removeprefix("container:"))["pid"]
        linux["namespaces"][0]["path"] = f"/proc/{of}/ns/pid"
    if seccomp_of(options):
        linux["seccomp"] = seccomp_of(options)
    process = {
        "user": user, "args": command, "cwd": config.get("WorkingDir") or "/",
        "env": [*(config.get("Env") or []), *options.env],
        "capabilities": {"bounding": caps, "effective": mine,
                         "permitted": mine},
        "rlimits": limits_of(options),
        "noNewPrivileges": "no-new-privileges" in options.security_opt}
    return {"ociVersion": "1.0.0", "process": process, "linux": linux,
            "root": {"path": str(root), "readonly": options.read_only},
            "mounts": mounts_of(options), "hostname": options.name}


def run(arguments):
    parser = argparse.ArgumentParser("docker run")
    for flag in ("--detach", "--rm", "--read-only"):
        parser.add_argument(*([flag[1:3]] if flag == "--detach" else []), flag,
                            action="store_true")
    for many in (("--volume", "-v"), ("--env", "-e"), ("--tmpfs",),
                 ("--ulimit",), ("--security-opt",), ("--cap-drop",),
                 ("--cap-add",), ("--group-add",)):
        parser.add_argument(*many, action="append", default=[])
    for one in ("--name", "--user", "--entrypoint", "--network", "--pid"):
        parser.add_argument(one)
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    options.name = options.name or f"unnamed-{os.getpid()}"
    bundle = HOME / "bundles" / options.name
    bundle.mkdir(parents=True)
    made = buildah("from", "--name", options.name, options.image)
    root = pathlib.Path(buildah("mount", made))
    config = image_config(options.image)
    (bundle / "config.json").write_text(json.dumps(spec(options, config, root)))
    begin(options, bundle)


def begin(options, bundle):
    command = [*RUNC, "run", "--bundle", bundle]
    if options.detach:
        with open(bundle / "log", "wb") as log:
            subprocess.run([*command, "--detach", options.name], check=True,
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        print(options.name)
        return
    code = subprocess.run([*command, options.name], check=False).returncode
    if options.rm:
        remove([options.name])
    sys.exit(code)


def state(name):
    """{"status": ..., "pid": ...}, or None once it is gone."""
    said = subprocess.run([*RUNC, "state", name], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return json.loads(said.stdout) if said.returncode == 0 else None


def execute(arguments):
    user = []
    if arguments[0] == "--user":
        user, arguments = arguments[:2], arguments[2:]
    os.execvp("runc", [str(word) for word in [*RUNC, "exec", *user,
                                              *arguments]])


def stop(arguments):
    patience = 10
    if arguments[0] in ("-t", "--timeout", "--time"):
        patience, arguments = int(arguments[1]), arguments[2:]
    name, = arguments
    running = state(name)
    if running and running["status"] == "running":
        pidfd = os.pidfd_open(running["pid"])
        subprocess.run([*RUNC, "kill", name, "TERM"], check=True)
        if not ended(pidfd, patience):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ended(pidfd, 60)
    print(name)


def wait(arguments):
    """With a limit, which docker's has not. How it ended runc forgets."""
    flag, seconds, name = arguments
    assert flag == "--timeout", arguments
    running = state(name)
    if running and running["status"] == "running":
        if not ended(os.pidfd_open(running["pid"]), int(seconds)):
            sys.exit(f"{name} runs on")


def ended(pidfd, seconds):
    return bool(select.select([pidfd], [], [], seconds)[0])


def remove(names):
    for name in names:
        if name in ("-f", "--force"):
            continue
        deadline = time.monotonic() + 30
        while state(name) and time.monotonic() < deadline:
            subprocess.run([*RUNC, "delete", "--force", name], check=False,
                           stderr=subprocess.DEVNULL)
        buildah("rm", name)
        subprocess.run(["rm", "-r", HOME / "bundles" / name], check=True)


def kill(arguments):
    flag, number, name = arguments
    assert flag == "-s", arguments
    subprocess.run([*RUNC, "kill", name, number], check=True)


def logs(arguments):
    print((HOME / "bundles" / arguments[0] / "log").read_text(), end="")


def inspect_image(arguments):
    print(json.dumps(image_config(arguments[0])))


def main():
    verb, *arguments = sys.argv[1:]
    {"import-root": import_root, "build": build, "run": run, "exec": execute,
     "kill": kill, "stop": stop, "wait": wait, "rm": remove, "logs": logs,
     "inspect-image": inspect_image}[verb](arguments)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"docker: {error}")
