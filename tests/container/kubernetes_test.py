"""deploy/kubernetes: by schema, by what refers to what, and as pods that run.

kubernetes_test.py BUILD [unittest options]
"""

import hashlib
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import world  # noqa: E402

WHY_NOT = world.enter("buildah", "runc", "debootstrap")

from real_daemon import (MIB, block_model, until,  # noqa: E402
                         write_safetensors)

try:
    import yaml
    import kubernetes_validate
    import kustomize
    NO_YAML = None
except ImportError as error:
    NO_YAML = f"needs kubernetes-validate from PyPI: {error}"

BUILD = str(pathlib.Path(sys.argv.pop(1)).resolve())
DEPLOY = world.ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
FOLDERS = ("base", "overlays/h100", "worker", "near", "preload")
README = KUBERNETES / "README.md"
LABEL = "feature.node.kubernetes.io/hoist-"
FEATURES = pathlib.Path(
    "/etc/kubernetes/node-feature-discovery/features.d/hoist")
VERSIONS = ("1.27", "1.34")


def only(kind, folder="base"):
    found, = (r for r in kustomize.render(KUBERNETES / folder)
              if r["kind"] == kind)
    return found


def pod(folder="base"):
    (_, spec), = kustomize.pod_specs(kustomize.render(KUBERNETES / folder))
    return spec


@unittest.skipIf(NO_YAML, NO_YAML)
class Text(unittest.TestCase):
    """The files as they stand; needs no container."""

    def test_every_resource_is_what_the_schema_says(self):
        for folder in FOLDERS:
            for resource in kustomize.render(KUBERNETES / folder):
                for version in VERSIONS:
                    with self.subTest(folder, kind=resource["kind"],
                                      version=version):
                        kubernetes_validate.validate(resource, version,
                                                     strict=True)

    def test_the_schema_sees_a_wrong_key(self):
        wrong = only("DaemonSet")
        wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[0], strict=True)

    def test_every_file_belongs_to_a_kustomization(self):
        named = set()
        for path in KUBERNETES.rglob("kustomization.yaml"):
            text = yaml.safe_load(path.read_text())
            files = text.get("resources", []) + [
                file for made in text.get("configMapGenerator", [])
                for file in made["files"]]
            named |= {(path.parent / file).resolve() for file in files}
            named.add(path)
        self.assertEqual({path for path in KUBERNETES.rglob("*")
                          if path.is_file()} - named, {README})
        self.assertEqual([path for path in named if not path.exists()], [])

    def test_every_reference_leads_somewhere(self):
        for folder in FOLDERS:
            resources = kustomize.render(KUBERNETES / folder)
            there = {(r["kind"], r["metadata"]["name"],
                      r["metadata"].get("namespace")) for r in resources}
            for owner, spec in kustomize.pod_specs(resources):
                with self.subTest(folder):
                    self.check_references(owner, spec, there)

    def check_references(self, owner, spec, there):
        space = owner["metadata"]["namespace"]
        if space != "default":
            self.assertIn(("Namespace", space, None), there)
        if "priorityClassName" in spec:
            self.assertIn(("PriorityClass", spec["priorityClassName"], None),
                          there)
        for volume in spec["volumes"]:
            if "configMap" in volume:
                self.assertIn(("ConfigMap", volume["configMap"]["name"], space),
                              there)
        self.assertEqual(
            {mount["name"] for container in kustomize.containers(spec)
             for mount in container.get("volumeMounts", [])},
            {volume["name"] for volume in spec["volumes"]})
        if "selector" in owner["spec"]:
            self.assertLessEqual(
                owner["spec"]["selector"]["matchLabels"].items(),
                owner["spec"]["template"]["metadata"]["labels"].items())

    def test_no_container_but_the_first_step_has_a_right(self):
        for folder in FOLDERS:
            spec = pod(folder)
            for forbidden in ("hostPID", "hostIPC", "hostNetwork"):
                self.assertNotIn(forbidden, spec)
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            for container in spec["containers"]:
                context = container["securityContext"]
                self.assertEqual(context, {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]}})
            for step in spec.get("initContainers", []):
                self.assertEqual(step["securityContext"]["capabilities"],
                                 {"drop": ["ALL"], "add": ["CHOWN"]})

    def test_numbers_and_names_are_the_images(self):
        dockerfile = (DEPLOY / "container/Dockerfile").read_text()
        uid = int(re.search(r"^ARG HOIST_UID=(\d+)", dockerfile, re.M)[1])
        entry = re.search(r"^ENTRYPOINT (.*)", dockerfile, re.M)[1]
        node = pod()
        for key in ("runAsUser", "runAsGroup", "fsGroup"):
            self.assertEqual(node["securityContext"][key], uid)
        main = node["containers"][0]
        self.assertEqual(main["command"], yaml.safe_load(entry))
        self.assertIn(f"chown {uid}:{uid} ",
                      node["initContainers"][0]["command"][-1])
        self.assertIn(f"chown 0:{uid} /features.d",
                      node["initContainers"][0]["command"][-1])
        for name in ("worker", "near", "preload"):
            self.assertEqual(pod(name)["securityContext"]
                             ["supplementalGroups"], [uid])

    def test_paths_are_those_of_the_configuration(self):
        socket = re.search(r'^socket = "(.*)"', (DEPLOY / "hoistd.toml")
                           .read_text(), re.M)[1]
        folder = str(pathlib.Path(socket).parent)
        for name in ("base", "worker", "near", "preload"):
            spec = pod(name)
            self.assertIn(folder, [
                volume.get("hostPath", {}).get("path")
                for volume in spec["volumes"]])
            self.assertIn(folder, [
                mount["mountPath"]
                for mount in spec["containers"][0]["volumeMounts"]])
        for place in ("base", "overlays/h100"):
            text = only("ConfigMap", place)["data"]["hoistd.toml"]
            mounted = {mount["mountPath"] for mount in
                       pod(place)["containers"][0]["volumeMounts"]}
            for path in re.findall(r'"(/.*?)"', text):
                self.assertTrue(any(path == at or path.startswith(at + "/")
                                    for at in mounted), path)

    def test_the_profile_is_put_where_the_pod_looks_for_it(self):
        profile = pod()["securityContext"]["seccompProfile"]
        command = world.commands(README, "Prepare the nodes")[0]
        self.assertEqual(command.split()[-1], "/var/lib/kubelet/seccomp/" +
                         profile["localhostProfile"])

    def test_the_drain_ends_before_the_grace_period(self):
        spec = pod()
        drain = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        self.assertLess(int(drain[-1]),
                        spec["terminationGracePeriodSeconds"])

    def test_labels_are_those_of_the_model_that_pods_use(self):
        model = "shared-model"
        near = pod("near")
        for spec in (near, pod("preload")):
            self.assertIn(f'"{model}", readers="everyone"',
                          spec["containers"][0]["args"][-1])
        digits = hashlib.sha256(model.encode()).hexdigest()[:32]
        wishes = near["affinity"]["nodeAffinity"]
        terms = [term for one in wishes[
            "requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"] for term in one["matchExpressions"]]
        terms += [term for one in wishes[
            "preferredDuringSchedulingIgnoredDuringExecution"]
            for term in one["preference"]["matchExpressions"]]
        self.assertEqual({term["key"] for term in terms}, {
            f"{LABEL}model.{digits}", f"{LABEL}room.host-gib"})

    def test_features_lie_where_nfd_looks(self):
        spec = pod()
        writes = spec["containers"][1]
        folder, = (volume["hostPath"]["path"] for volume in spec["volumes"]
                   if volume["name"] == "features")
        self.assertEqual(folder, str(FEATURES.parent))
        self.assertIn({"name": "features", "mountPath": str(
            pathlib.Path(writes["args"][1]).parent)}, writes["volumeMounts"])
        self.assertTrue(spec["shareProcessNamespace"])

    def test_the_overlay_changes_what_it_says(self):
        main = pod("overlays/h100")["containers"][0]
        self.assertEqual(main["image"], "registry.internal/ml/hoist:0.1.0")
        self.assertEqual(main["resources"]["limits"]["memory"], "800Gi")
        self.assertIn("512GiB", only("ConfigMap", "overlays/h100")
                      ["data"]["hoistd.toml"])


@unittest.skipIf(WHY_NOT or NO_YAML, WHY_NOT or NO_YAML)
class Node(unittest.TestCase):
    """One node on which the README's commands are run, one after another."""

    @classmethod
    def setUpClass(cls):
        cls.world = world.make(BUILD, cls.addClassCleanup)
        pathlib.Path("/srv/models").mkdir()
        write_safetensors("/srv/models/model.safetensors", block_model(3))
        cls.toml = (cls.world.archive /
                    "share/hoist/kubernetes/base/hoistd.toml")
        # What fits here.
        cls.toml.write_text(cls.toml.read_text() + f"\n[host]\npool = "
                            f"{64 * MIB}\n[device]\npool = {256 * MIB}\n")
        for name in ("hoistd-node-1-pause", "hoistd-node-1-features",
                     *(f"{owner}-node-1" for owner in (
                         "hoistd", "worker", "preload", "near"))):
            cls.addClassCleanup(cls.world.run, "docker", "rm", "-f", name,
                                check=False)
        cls.world.follow(README, "Prepare the nodes")
        *first, cls.status = world.commands(README, "Install")
        for line in first:
            cls.world.run("bash", "-euc", line)
        cls.probe(pod()["containers"][0]["startupProbe"])

    @classmethod
    def in_pod(cls, *command, check=True):
        return cls.world.run("docker", "exec", "hoistd-node-1", *command,
                             check=check)

    @classmethod
    def probe(cls, probe):
        """As kubelet asks, until it succeeds."""
        command = probe["exec"]["command"]
        until(lambda: "hoistd 0" in cls.in_pod(*command, check=False),
              seconds=30)

    def log(self, owner):
        return self.world.run("docker", "logs", f"{owner}-node-1")

    def test_1_probes_answer(self):
        main = pod()["containers"][0]
        for kind in ("readinessProbe", "livenessProbe"):
            self.probe(main[kind])
        self.assertIn("TIER", self.world.run("bash", "-euc", self.status))

    def test_2_hoistd_has_no_right(self):
        pid = re.search(r", pid (\d+),", self.in_pod("hoistctl", "status"))[1]
        status = dict(re.findall(r"^(\w+):\t(.*)$", self.in_pod(
            "cat", f"/proc/{pid}/status"), re.M))
        self.assertEqual(status["Uid"].split(), ["10640"] * 4)
        self.assertEqual(int(status["CapBnd"], 16), 0)
        self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"))

    def test_2_the_overlays_configuration_is_one(self):
        folder = KUBERNETES / "overlays/h100"
        self.assertIn("fine", self.world.run(
            "docker", "run", "--rm", "-v", f"{folder}:/overlay:ro", "-v",
            "/srv/models:/srv/models:ro", "--entrypoint", "hoistd",
            "registry.example.com/hoist:0.1.0", "--check-config", "--config",
            "/overlay/hoistd.toml", "--set", "host.pool=64MiB", "--set",
            "host.in_place=0", "--set", "disk.spill_capacity=auto"))

    def test_3_a_worker_stages_and_is_named(self):
        *first, logs, sessions = world.commands(README, "Deploy workers")
        for line in first:
            self.world.run("bash", "-euc", line)
        until(lambda: self.log("worker").count("staged") == 4, seconds=60)
        self.assertIn("staged", self.world.run("bash", "-euc", logs))
        self.assertRegex(self.world.run("bash", "-euc", sessions),
                         r"worker-node-1 +socket +outside +1000 ")

    def test_3_pods_go_where_their_models_are(self):
        told, digits, *commands, logs = world.commands(
            README, "Schedule pods onto nodes that have their model")
        model = LABEL + "model." + self.world.run("bash", "-euc",
                                                  digits).strip()
        until(FEATURES.exists, seconds=60)
        self.assertNotIn(f"{model}=", self.world.run("bash", "-euc", told))
        for line in commands:
            self.world.run("bash", "-euc", line)
        self.assertEqual(self.log("preload").count("on the host"), 4,
                         self.log("preload"))
        self.assertRegex(self.world.run("bash", "-euc", told),
                         f"{re.escape(model)}=(host|device)")
        until(lambda: re.search(f"{re.escape(model)}=(host|device)",
                                FEATURES.read_text()), seconds=90)
        until(lambda: self.log("near").count("staged") == 4, seconds=60)
        self.assertIn("staged", self.world.run("bash", "-euc", logs))

    def test_4_a_changed_configuration_reaches_the_pod(self):
        self.toml.write_text(self.toml.read_text() + "[log]\nlevel = "
                             '"debug"\n')
        self.world.follow(README, "Change the configuration")
        until(lambda: "was read again; changed" in
              self.log("hoistd"), seconds=30)

    def test_5_an_upgrade_keeps_what_the_README_says(self):
        publish = ("import hoist; hoist.connect().publish('kept', 'g', "
                   "{'w': memoryview(bytes(range(256)) * 4096)})")
        worker = ("docker", "run", "--rm", "--user", "1000:1000",
                  "--group-add", "10640", "-v", "/run/hoist:/run/hoist:ro",
                  "registry.example.com/worker:0.1.0", "python3", "-c")
        self.world.run(*worker, publish)
        self.in_pod("hoistctl", "load", "/srv/models/model.safetensors")
        self.world.follow(README, "Upgrade")
        self.probe(pod()["containers"][0]["startupProbe"])
        models = self.in_pod("hoistctl", "models")
        self.assertRegex(models, r"(?m)^(\w+:)?kept ")
        self.assertNotRegex(models, r"(?m)^model ")
        said = self.world.run(
            *worker, "import hoist, ctypes; s = hoist.connect(); t = s.stage("
            "s.model('kept')['g'])['w']; print(ctypes.string_at(t.address, "
            "t.nbytes) == bytes(range(256)) * 4096)")
        self.assertEqual(said.strip(), "True")


if __name__ == "__main__":
    unittest.main()
