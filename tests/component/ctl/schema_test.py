"""What hoistctl prints with --json is what `hoistctl schema` says, to the field.

schema_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH.
"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
import jsonschema  # noqa: E402
import numpy as np  # noqa: E402
from real_daemon import MIB, RealDaemon, block_model, write_safetensors  # noqa: E402

HOISTD = sys.argv.pop(1)
HOISTCTL = pathlib.Path(HOISTD).parents[1] / "client" / "ctl" / "hoistctl"
TO_DEVICE = ["--tier", "device"]
# Each verb, and what it is given. In this order: what is loaded is shown after.
VERBS = {
    "load": ["MODEL"], "pin": ["m", *TO_DEVICE], "status": [],
    "top": ["--every", "0.1", "--count", "2"], "models": [], "groups": ["m"],
    "sessions": [], "plans": [], "check": [],
    "share": ["PLAN", "--weight", "3"], "unpin": ["m", *TO_DEVICE],
    "evict": ["m", *TO_DEVICE], "drain": ["--resume"], "config": [], "doctor": ["--no-disk"],
    "reload": [], "log-level": ["info"], "version": [], "explain": ["m"],
    "sleep": ["PLANS"], "wake": ["PLANS"],
    "end": ["SESSION"], "trace": ["record", "--for", "0.1", "--out", "TRACE"],
    "features": ["--all"],
}
FOLLOWING = {"watch"}  # It ends when it is ended.
# They print text, or a schema.
WITHOUT_JSON = {"help", "completion", "schema"}
FOUND_SOMETHING = 4


def run(*words, socket=None):
    where = ["--socket", socket] if socket else []
    return subprocess.run([HOISTCTL, *where, *words], check=False,
                          capture_output=True, text=True)


def closed(schema):
    """The same, but that no object has a field that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    if made.get("type") == "object" and "properties" in made:
        made["additionalProperties"] = False
    return made


def schema_of(name):
    done = run("schema", name)
    if done.returncode != 0:
        raise AssertionError(
            f"no schema of `hoistctl {name} --json`; client/ctl/schema.cc lists "
            f"what each verb prints: {done.stderr}")
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def validate(name, value):
    jsonschema.Draft202012Validator(closed(schema_of(name))).validate(value)


def objects(text):
    """One on many lines, or one a line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


class Verbs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = RealDaemon(
            HOISTD, pool=32 * MIB,
            extra=f'[models]\nroots = ["{tempfile.gettempdir()}"]\n')
        cls.addClassCleanup(cls.daemon.stop)
        cls.session = hoist.connect(cls.daemon.socket, connect_deadline=60)
        cls.addClassCleanup(cls.session.close)
        cls.session.publish("published", "one", {"w": np.ones(1000, "f4")})
        cls.files = cls.daemon.path / "m.safetensors"
        other = cls.daemon.path / "planned.safetensors"
        for files in (cls.files, other):
            write_safetensors(files, block_model())
        registered = cls.session.register(other, "planned")
        cls.plan = cls.session.set_plan(registered, budget=4 * MIB,
                                        gives_way=True)
        cls.lease = cls.session.stage(registered["layers.0"], deadline=60)

    def ctl(self, *words):
        return run(*words, socket=self.daemon.grpc_socket)

    def idle(self):
        """The number of a session that uses nothing."""
        self.addCleanup(hoist.connect(self.daemon.socket, name="idle").close)
        listed = objects(self.ctl("--json", "sessions").stdout)[0]["sessions"]
        return next(one["id"] for one in listed
                    if one["client_name"] == "idle")

    def given(self, verb):
        known = {"MODEL": [str(self.files), "--name", "m"],
                 "PLAN": [str(self.plan.info.id)],
                 "PLANS": [str(self.session.id)],
                 "TRACE": [str(self.daemon.path / "trace.json")]}
        if "SESSION" in VERBS[verb]:
            known["SESSION"] = [self.idle()]
        return [word for one in VERBS[verb] for word in known.get(one, [one])]

    def test_each_verb_prints_what_its_schema_says(self):
        for verb in VERBS:
            with self.subTest(verb=verb):
                done = self.ctl(verb, "--json", *self.given(verb))
                self.assertIn(done.returncode, (0, FOUND_SOMETHING), done.stderr)
                printed = objects(done.stdout)
                self.assertTrue(printed)
                for one in printed:
                    validate(verb, one)
                for name, value in printed[-1].items():
                    if name in ("models", "groups", "sessions", "plans", "tiers",
                                "devices", "settings", "links"):
                        self.assertTrue(value, f"{verb}: {name} is empty")

    def test_status_and_top_name_counters(self):
        """Those above zero, and those that grow."""
        over = threading.Event()

        def stage():
            with hoist.connect(self.daemon.socket, name="stages") as session:
                group = session.model("planned")["layers.0"]
                while not over.is_set():
                    session.stage(group, deadline=60).release()
        worker = threading.Thread(target=stage)
        worker.start()
        try:
            said = self.ctl("top", "--count", "1", "--every", "0.5").stdout
        finally:
            over.set()
            worker.join()
        self.assertRegex(said, r"\ncounters: (.*, )?stages \d+/s")
        self.assertRegex(self.ctl("status").stdout,
                         r"\ncounters: file read .*, stages \d+")

    def test_a_plan_that_gives_way_is_a_loan(self):
        with hoist.connect(self.daemon.socket, name="lender") as session:
            other = self.daemon.path / "lent.safetensors"
            write_safetensors(other, block_model())
            plan = session.set_plan(session.register(other, "lent"),
                                    budget=4 * MIB, gives_way=True)
            self.ctl("sleep", str(session.id))
            self.assertIn("an admin", self.ctl("top", "--count", "1").stdout)
            self.assertFalse(self.loan()["lent"])
            taken = plan.info.ring_bytes + plan.info.resident_bytes
            plan.close()
            loan = self.loan()
            self.assertTrue(loan["lent"])
            self.assertEqual(loan["cause"], "CAUSE_ADMIN")
            self.assertEqual(int(loan["bytes"]), taken)
            explained = self.ctl("explain", "lent")
            self.assertRegex(explained.stdout,
                             r"lender +lent .* lent .* ago +an admin")
            told = objects(self.ctl("status", "--json").stdout)[0]
            self.assertGreaterEqual(
                int(told["counters"]["lent_bytes_by_admins"]), taken)
        with self.assertRaises(StopIteration):
            self.loan()

    def loan(self):
        """Of the client "lender"."""
        printed, = objects(self.ctl("plans", "--json").stdout)
        validate("plans", printed)
        return next(one for one in printed["loans"]
                    if one["client"] == "lender")

    def test_a_refusal_comes_after_what_was_printed(self):
        self.addCleanup(self.ctl, "drain", "--resume")
        done = self.ctl("drain", "--json")
        self.assertEqual(done.returncode, 1)
        printed = objects(done.stdout)
        for one in printed:
            validate("drain", one)
        self.assertTrue(printed[-1]["holders"])
        validate("error", json.loads(done.stderr))

    def test_what_follows_prints_a_line_each(self):
        watch = subprocess.Popen(
            [HOISTCTL, "--socket", self.daemon.grpc_socket, "watch", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(watch.communicate)
        self.addCleanup(watch.kill)
        publishing = subprocess.Popen(
            [sys.executable, "-c", PUBLISH, self.daemon.socket])
        self.addCleanup(publishing.wait)
        self.addCleanup(publishing.kill)
        lines = [watch.stdout.readline() for _ in range(4)]
        for line in lines:
            validate("watch", json.loads(line))

    def test_no_verb_is_left_out(self):
        listed = re.findall(r"^  ([a-z-]+) ",
                            run("--help").stdout.split("Subcommands:")[1], re.M)
        self.assertEqual(set(listed), {*VERBS, *FOLLOWING, *WITHOUT_JSON},
                         "VERBS says what a verb is given here")

    def test_schemas_say_what_fields_are(self):
        status = schema_of("status")
        self.assertIn("notes for the operator",
                      status["properties"]["notes"]["description"].lower())
        tier = status["$defs"]["hoist.v1.TierStatus"]["properties"]
        self.assertIn("slab", tier["allocated_bytes"]["description"])

    def test_a_field_that_a_schema_lacks_is_noticed(self):
        status = json.loads(self.ctl("status", "--json").stdout)
        validate("status", status)
        for change in (
                lambda made: made.update(another=1),
                lambda made: made["tiers"][0].update(another="1"),
                lambda made: made.pop("uptime_ms"),
                lambda made: made["tiers"][0].update(used_bytes=5),
                lambda made: made["tiers"][0].update(tier="TIER_MOON"),
                lambda made: made.update(pid=-1)):
            changed = copy.deepcopy(status)
            change(changed)
            with self.assertRaises(jsonschema.ValidationError):
                validate("status", changed)


# Until it is ended: what `hoistctl watch` tells of.
PUBLISH = """
import sys
import hoist
import numpy as np
with hoist.connect(sys.argv[1]) as session:
    at = 0
    while True:
        at += 1
        model = session.publish("watched", f"group {at % 50}",
                                {"w": np.full(10, at % 50, "f4")})
        if at % 50 == 0:
            session.done_with(model)
            session.forget(model)
"""


class Errors(unittest.TestCase):
    def error(self, done, code, exit_code):
        self.assertEqual(done.returncode, exit_code, done)
        self.assertEqual(done.stdout, "")
        line, = done.stderr.splitlines()
        found = json.loads(line)
        validate("error", found)
        self.assertEqual(found["error"]["code"], code)

    def test_what_hoistd_refuses(self):
        daemon = RealDaemon(HOISTD)
        self.addCleanup(daemon.stop)
        hoist.connect(daemon.socket, connect_deadline=60).close()
        for code, words in (
                ("NOT_FOUND", ["groups", "nothing"]),
                ("NOT_FOUND", ["pin", "nothing", *TO_DEVICE]),
                ("NOT_FOUND", ["config", "host.pol"]),
                ("NOT_FOUND", ["share", "99", "--weight", "2"]),
                ("FAILED_PRECONDITION", ["load", "/nowhere"])):
            with self.subTest(words=words):
                self.error(run("--json", *words, socket=daemon.grpc_socket),
                           code, 1)

    def test_no_hoistd(self):
        self.error(run("status", "--json", socket="/nowhere/hoistd.sock"),
                   "UNAVAILABLE", 3)

    def test_wrong_usage(self):
        for words in (["--json"], ["--json", "stauts"], ["--json", "groups"],
                      ["status", "--json", "--bogus"],
                      ["schema", "bogus", "--json"], ["help", "bogus", "--json"],
                      ["pin", "m", "--tier", "moon", "--json"],
                      ["share", "--json", "1"]):
            with self.subTest(words=words):
                self.error(run(*words), "INVALID_ARGUMENT", 2)


if __name__ == "__main__":
    unittest.main()
