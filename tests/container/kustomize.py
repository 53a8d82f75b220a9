"""The part of kustomize that deploy/kubernetes uses; anything else is refused,
so that nothing there goes unseen."""

import pathlib

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "images",
         "configMapGenerator", "generatorOptions", "patches"}
OF_NO_NAMESPACE = {"Namespace", "PriorityClass"}


def render(folder):
    """The resources that `kubectl apply -k FOLDER` would send."""
    folder = pathlib.Path(folder)
    text = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(text) - KNOWN
    if unknown:
        raise ValueError(f"{folder}: {unknown} are not known here")
    found = []
    for name in text.get("resources", []):
        path = folder / name
        found += (render(path) if path.is_dir()
                  else list(yaml.safe_load_all(path.read_text())))
    for made in text.get("configMapGenerator", []):
        generate(folder, made, text.get("generatorOptions", {}), found)
    for resource in found:
        if "namespace" in text and resource["kind"] not in OF_NO_NAMESPACE:
            resource["metadata"]["namespace"] = text["namespace"]
    for one in text.get("patches", []):
        patch(one, found)
    for image in text.get("images", []):
        rename(image, found)
    return found


def generate(folder, made, options, found):
    if options != {"disableNameSuffixHash": True}:
        raise ValueError("names with a hash are not rendered here")
    data = {pathlib.Path(name).name: (folder / name).read_text()
            for name in made["files"]}
    there = [r for r in found if r["kind"] == "ConfigMap" and
             r["metadata"]["name"] == made["name"] and
             r["metadata"].get("namespace") == made.get("namespace")]
    if made.get("behavior", "create") == "replace":
        there[0]["data"] = data
        return
    if there:
        raise ValueError(f"{made['name']} is there already")
    found.append({"apiVersion": "v1", "kind": "ConfigMap",
                  "metadata": {"name": made["name"]}, "data": data})


def patch(one, found):
    for resource in found:
        if (resource["kind"] != one["target"]["kind"] or
                resource["metadata"]["name"] != one["target"]["name"]):
            continue
        for step in yaml.safe_load(one["patch"]):
            apply_step(resource, step)
        return
    raise ValueError(f"nobody is {one['target']}")


def apply_step(at, step):
    """JSON patch: add and replace."""
    *way, last = [part.replace("~1", "/").replace("~0", "~")
                  for part in step["path"].split("/")[1:]]
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    if step["op"] == "replace" and last not in at:
        raise ValueError(f"{step['path']} is not there to be replaced")
    if step["op"] not in ("add", "replace"):
        raise ValueError(f"{step['op']} is not known here")
    at[last] = step["value"]


def pod_specs(resources):
    for resource in resources:
        if resource["kind"] in ("DaemonSet", "Deployment", "Job"):
            yield resource, resource["spec"]["template"]["spec"]
        elif resource["kind"] == "Pod":
            yield resource, resource["spec"]


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def rename(image, found):
    used = False
    for _, spec in pod_specs(found):
        for container in containers(spec):
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                tag = image.get("newTag", tag)
                container["image"] = (image.get("newName", name) +
                                      (f":{tag}" if tag else ""))
                used = True
    if not used:
        raise ValueError(f"no container has the image {image['name']}")
