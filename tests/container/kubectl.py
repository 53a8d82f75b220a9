"""The part of kubectl, and of kubelet, that the READMEs use: one node.

Pods run by docker.py. Real are the order of init containers, users, rights,
seccomp profiles, read-only roots, volumes, environment, preStop and the grace
period; there is no scheduler, no controller and no GPU, so nodeSelector,
runtimeClassName and resources mean nothing here.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import kustomize

NODE = "node-1"
SECCOMP = pathlib.Path("/var/lib/kubelet/seccomp")
HOME = pathlib.Path(os.environ.get("HOIST_DOCKER_HOME", "/nowhere"))
PODS = HOME / "pods"


def docker(*arguments, check=True, **options):
    return subprocess.run(["docker", *[str(word) for word in arguments]],
                          check=check, **options)


def pod_name(owner):
    return f"{owner}-{NODE}"


def volume_folder(pod, volume, maps):
    """Where a volume lies on the node, made as kubelet makes it."""
    name = volume["name"]
    if "hostPath" in volume:
        path = pathlib.Path(volume["hostPath"]["path"])
        if volume["hostPath"]["type"] == "DirectoryOrCreate":
            path.mkdir(0o755, parents=True, exist_ok=True)
        elif not path.is_dir():
            raise SystemExit(f"{path} is no directory; the pod waits")
        return path
    path = PODS / pod["name"] / "volumes" / name
    path.mkdir(parents=True, exist_ok=True)
    if "configMap" in volume:
        for file, text in maps[volume["configMap"]["name"]].items():
            (path / file).write_text(text)
        return path
    os.chown(path, 0, pod["spec"]["securityContext"].get("fsGroup", 0))
    path.chmod(0o2777)
    return path


def security(pod, container):
    """docker's options for both securityContexts, the container's first."""
    of = {**pod["spec"].get("securityContext", {}),
          **container.get("securityContext", {})}
    if of.get("runAsNonRoot") and of["runAsUser"] == 0:
        raise SystemExit("runAsNonRoot, but the user is root")
    groups = [g for g in [*of.get("supplementalGroups", []),
                          of.get("fsGroup")] if g is not None]
    options = ["--user", f"{of['runAsUser']}:{of['runAsGroup']}"]
    for group in groups:
        options += ["--group-add", group]
    for verb in ("drop", "add"):
        for right in of.get("capabilities", {}).get(verb, []):
            options += [f"--cap-{verb}", right]
    if not of.get("allowPrivilegeEscalation", True):
        options += ["--security-opt", "no-new-privileges"]
    if of.get("readOnlyRootFilesystem"):
        options.append("--read-only")
    profile = of.get("seccompProfile", {})
    if profile.get("type") == "Localhost":
        options += ["--security-opt",
                    f"seccomp={SECCOMP / profile['localhostProfile']}"]
    return options


def environment(pod, container):
    options = []
    for variable in container.get("env", []):
        value = variable.get("value")
        if value is None:
            field = variable["valueFrom"]["fieldRef"]["fieldPath"]
            value = {"metadata.name": pod["name"]}[field]
        options += ["--env", f"{variable['name']}={value}"]
    return options


def run(pod, container, folders, *how):
    mounts = []
    for one in container.get("volumeMounts", []):
        read = "ro" if one.get("readOnly") else "rw"
        mounts += ["-v", f"{folders[one['name']]}:{one['mountPath']}:{read}"]
    command = container.get("command", [])
    docker("run", *how, "--network", "none", *security(pod, container),
           *environment(pod, container), *mounts,
           *(["--entrypoint", command[0]] if command else []),
           container["image"], *command[1:], *container.get("args", []))


def start(pod, maps):
    (PODS / pod["name"]).mkdir(parents=True)
    (PODS / pod["name"] / "pod.json").write_text(json.dumps([pod, maps]))
    folders = {volume["name"]: volume_folder(pod, volume, maps)
               for volume in pod["spec"]["volumes"]}
    for container in pod["spec"].get("initContainers", []):
        run(pod, container, folders, "--rm", "--name",
            f"{pod['name']}-{container['name']}")
    main = pod["spec"]["containers"][0]
    shared = ()
    if pod["spec"].get("shareProcessNamespace"):
        pause = f"{pod['name']}-pause"
        run(pod, {"image": main["image"], "command": ["sleep", "infinity"]},
            folders, "--detach", "--name", pause)
        shared = ("--pid", f"container:{pause}")
    for name, container in named_containers(pod):
        run(pod, container, folders, *shared, "--detach", "--name", name)


def named_containers(pod):
    """The first has the pod's name."""
    first, *others = pod["spec"]["containers"]
    yield pod["name"], first
    for container in others:
        yield f"{pod['name']}-{container['name']}", container


def apply(arguments):
    flag, folder = arguments
    assert flag == "-k", arguments
    resources = kustomize.render(folder)
    maps = {r["metadata"]["name"]: r["data"] for r in resources
            if r["kind"] == "ConfigMap"}
    for owner, spec in kustomize.pod_specs(resources):
        name = pod_name(owner["metadata"]["name"])
        if (PODS / name).exists():  # OnDelete: files change, and no more.
            for volume in spec["volumes"]:
                if "configMap" in volume:
                    volume_folder({"name": name}, volume, maps)
            continue
        labels = owner["spec"].get("template", owner)["metadata"]["labels"]
        start({"name": name, "spec": spec, "labels": labels}, maps)


def execute(arguments):
    owner, dashes, *command = arguments
    assert dashes == "--", arguments
    docker("exec", pod_name(owner.split("/")[1]), *command)


def end(name):
    """preStop, SIGTERM, and what is left of the grace period."""
    pod, maps = json.loads((PODS / name / "pod.json").read_text())
    hook = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop")
    if hook:
        docker("exec", name, *hook["exec"]["command"], check=False)
    names = [one for one, _ in named_containers(pod)]
    for one in names:
        docker("stop", "--timeout",
               pod["spec"].get("terminationGracePeriodSeconds", 30), one)
    if pod["spec"].get("shareProcessNamespace"):
        names.append(f"{name}-pause")
    docker("rm", "-f", *names)
    shutil.rmtree(PODS / name)
    return pod, maps


def delete(arguments):
    """The DaemonSet's controller makes another at once."""
    kind, *how = arguments
    selector = how[how.index("--selector") + 1].split("=")
    node = how[how.index("--field-selector") + 1]
    assert (kind, node) == ("pod", f"spec.nodeName={NODE}"), arguments
    chosen = [path.name for path in PODS.iterdir() if json.loads(
        (path / "pod.json").read_text())[0]["labels"].get(selector[0]) ==
        selector[1]]
    assert chosen, arguments
    for name in chosen:
        start(*end(name))


def logs(arguments):
    docker("logs", pod_name(arguments[0].split("/")[1]))


def wait(arguments):
    """Until a Job's container has ended, well or not."""
    condition, owner, patience = arguments
    assert condition == "--for=condition=complete", arguments
    name = pod_name(owner.split("/")[1])
    seconds = int(patience.removeprefix("--timeout=").removesuffix("s"))
    docker("wait", "--timeout", seconds, name)


def main():
    words = sys.argv[1:]
    if words[0] == "-n":
        words = words[2:]
    {"apply": apply, "exec": execute, "delete": delete, "logs": logs,
     "wait": wait}[
        words[0]](words[1:])


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"kubectl: {error}")
