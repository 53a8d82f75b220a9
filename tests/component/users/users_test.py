"""What one user takes is bounded, and costs the others nothing.

users_test.py HOISTD [unittest options]; needs HOIST_LIBRARY, PYTHONPATH and
root, whose children become other users. In each test EVIL takes all it can get
and keeps it, until OTHER has been served as if nobody else were there.
"""

import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / "../../support"))

import hoist  # noqa: E402
from as_user import start_as  # noqa: E402
from real_daemon import MIB, RealDaemon, write_safetensors  # noqa: E402

try:
    import numpy as np
except ImportError:
    np = None

HOISTD = sys.argv.pop(1)
EVIL, OTHER = 54321, 54322


@unittest.skipIf(os.getuid() != 0, "needs root, to be several users")
@unittest.skipIf(np is None, "needs NumPy")
class Users(unittest.TestCase):
    def start(self, extra="", limit=None):
        def few_descriptors():
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        self.daemon = RealDaemon(HOISTD, pool=16 * MIB, slab=2 * MIB,
                                 host=32 * MIB, extra=extra, mode="0666",
                                 limits=few_descriptors if limit else None)
        self.addCleanup(self.daemon.stop)
        pathlib.Path(self.daemon.folder.name).chmod(0o755)
        self.connect().close()

    def connect(self):
        return hoist.connect(self.daemon.socket, connect_deadline=30)

    def taken(self, take):
        """EVIL does take() and stays; returns its refusal, or fails."""
        def work(tell):
            kept = []
            try:
                take(kept)
                tell("was refused nothing")
            except hoist.HoistError as error:
                tell(f"refused: {type(error).__name__}: {error}")
            signal.pause()

        pid, said = start_as(EVIL, work)

        def end():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            said.close()
        self.addCleanup(end)
        line = said.readline()
        if not line.startswith("refused: "):
            self.fail(line + said.read() if "Trace" in line else line)
        return line

    def served(self, uid=OTHER, use=None):
        """Another user publishes, stages and reads; or does use(session)."""
        def work(tell):
            with hoist.connect(self.daemon.socket) as session:
                if use is not None:
                    use(session)
                    return tell("served")
                data = np.arange(MIB, dtype=np.uint8)
                model = session.publish("own", "g", {"w": data}, deadline=5)
                with session.stage(model["g"], deadline=10) as lease:
                    assert np.array_equal(lease["w"].numpy(), data)
            tell("served")

        pid, said = start_as(uid, work)
        with said:
            text = said.read()
        os.waitpid(pid, 0)
        self.assertEqual(text, "served\n")

    def refusal(self, take, key):
        said = self.taken(take)
        self.assertIn("ResourceExhausted", said)
        self.assertIn(key, said)
        self.assertNotIn(str(OTHER), said)
        self.served()
        return said

    def test_sessions(self):
        self.start("[quota]\nsessions = 3")

        def take(kept):
            for _ in range(4):
                kept.append(self.connect())
        self.refusal(take, "quota.sessions")

    def test_models_of_one_file(self):
        self.start("[quota]\nmodels = 20")
        path = f"{self.daemon.folder.name}/one.safetensors"
        write_safetensors(path, {"w": ("U8", [4096], bytes(4096))})

        def take(kept):
            with self.connect() as session:
                for number in range(1000):
                    session.register(path, f"name-{number}")
        self.refusal(take, "quota.models")
        # Its own may go, and then there is room again.
        def forget(session):
            session.forget(session.model("name-3"))
            session.register(path, "another")
        self.served(EVIL, forget)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.process.pid}/fd"))

    def test_names_of_one_file_cost_no_descriptors(self):
        self.start()
        path = f"{self.daemon.folder.name}/one.safetensors"
        write_safetensors(path, {"w": ("U8", [4096], bytes(4096))})

        def names(session):
            for number in range(500):
                session.register(path, f"name-{number}")
            with session.stage(session.model("name-7")["model"]) as lease:
                assert not lease["w"].numpy().any()
        before = self.descriptors()
        self.served(EVIL, names)
        self.assertLess(self.descriptors(), before + 20)

    def files(self, count):
        paths = [f"{self.daemon.folder.name}/{number}.safetensors"
                 for number in range(count)]
        for path in paths:
            write_safetensors(path, {"w": ("U8", [4096], bytes(4096))})
        return paths

    def test_descriptors(self):
        # As many as hoistd may have at all, so that "auto" must do.
        self.start(limit=400)
        paths = self.files(200)

        def take(kept):
            with self.connect() as session:
                for path in paths:
                    session.register(path)
        said = self.refusal(take, "quota.descriptors")
        self.assertIn("holds 100 of 100", said)
        self.assertLess(self.descriptors(), 300)

    def test_header_bytes(self):
        self.start("[quota]\nheader_bytes = \"16MiB\"")
        # 20,000 tensors, of no bytes each.
        header = ",".join(
            f'"{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
            for number in range(20_000))
        header = f"{{{header}}}".encode()
        path = f"{self.daemon.folder.name}/large.safetensors"
        pathlib.Path(path).write_bytes(
            len(header).to_bytes(8, "little") + header)

        def take(kept):
            with self.connect() as session:
                for number in range(100):
                    session.register(path, f"name-{number}")
        self.refusal(take, "quota.header_bytes")

    def test_published_bytes(self):
        self.start()

        def take(kept):
            with self.connect() as session:
                for number in range(64):
                    session.publish("hoard", f"g{number}",
                                    {"w": np.full(MIB, number, np.uint8)},
                                    deadline=1)
        self.refusal(take, "quota.published_bytes")

    def test_device_bytes(self):
        self.start()

        def take(kept):
            session = self.connect()
            for number in range(16):
                model = session.publish("all", f"g{number}",
                                        {"w": np.full(MIB, number, np.uint8)})
                kept.append(session.stage(model[f"g{number}"], deadline=1))
        self.refusal(take, "quota.device_bytes")

    def test_plans(self):
        self.start("[quota]\nplans = 4")

        def take(kept):
            session = self.connect()
            for number in range(8):
                model = session.publish(f"m{number}", "g",
                                        {"w": np.zeros(4096, np.uint8)})
                kept.append(session.set_plan(model, order=list(model)))
        self.refusal(take, "quota.plans")

    def test_models_of_who_has_left_make_way(self):
        self.start()

        def hoard(session):
            for number in range(24):
                session.publish("left", f"g{number}",
                                {"w": np.full(MIB, number, np.uint8)})
        self.served(EVIL, hoard)

        def need(session):
            for number in range(20):
                session.publish("mine", f"g{number}",
                                {"w": np.full(MIB, number, np.uint8)},
                                deadline=10)
        self.served(OTHER, need)

    def test_silent_connections(self):
        self.start()

        def take(kept):
            for _ in range(300):
                one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                one.connect(self.daemon.socket)
                kept.append(one)
            raise hoist.ResourceExhausted("none: they were all let in")
        self.taken(take)
        self.served()

    def test_tenants_of_one_uid_are_apart_and_no_admins(self):
        folder = tempfile.TemporaryDirectory(prefix="hoist-tenants-")
        self.addCleanup(folder.cleanup)
        names = {name: f"{folder.name}/{name}.sock" for name in ("a", "b")}
        self.start("".join(f"""
[[tenant]]
name = "{name}"
socket = "{path}"
grpc_socket = "{path}.grpc"
quota = {{ models = 2 }}
""" for name, path in names.items()))

        def publish(session, name, number):
            return session.publish(name, "g", {
                "w": np.full(4096, number, np.uint8)})

        # All of them root, as in containers.
        a = hoist.connect(names["a"], connect_deadline=30)
        b = hoist.connect(names["b"], connect_deadline=30)
        self.addCleanup(a.close)
        self.addCleanup(b.close)
        for session, number in ((a, 1), (b, 2)):
            publish(session, "m", number)
        for session, owner, number in ((a, "a", 1), (b, "b", 2)):
            model = session.model("m")
            self.assertEqual(model.owner, owner)
            with session.stage(model["g"]) as lease:
                self.assertTrue((lease["w"].numpy() == number).all())
        with self.assertRaises(hoist.NotFound):
            b.model("a:m")
        publish(a, "n", 1)
        with self.assertRaisesRegex(hoist.ResourceExhausted,
                                    "tenant a .*tenant.quota.models"):
            publish(a, "o", 1)
        publish(b, "n", 2)
        # What everyone may read is everyone's, tenants included, by its name.
        with self.connect() as root:
            self.assertEqual(root.model("a:m").owner, "a")
            root.publish("shared", "g", {"w": np.zeros(4096, np.uint8)},
                         readers="everyone")
        self.assertEqual(a.model("shared").owner, 0)
        # hoistctl through a tenant's socket, as root.
        for act in (["evict", "m"], ["drain", "--deadline", "1"],
                    ["models"], ["status"]):
            with self.assertRaises(subprocess.CalledProcessError) as refused:
                self.daemon.ctl(*act, socket=f"{names['a']}.grpc")
            self.assertIn("not for tenants", refused.exception.stderr)
        self.assertRegex(self.daemon.log_text(),
                         "audit: act=evict tenant=a .*PERMISSION_DENIED")
        shown = self.daemon.ctl("models")
        self.assertRegex(shown, r"(?m)^m +\w+ +a +owner")
        self.assertRegex(shown, r"(?m)^m +\w+ +b +owner")
        self.assertRegex(self.daemon.ctl("sessions"), r"socket +\d+ +a ")
        self.daemon.ctl("evict", "a:m", "--forget")
        with self.assertRaises(hoist.NotFound):
            a.model("m")
        b.model("m")

    def test_another_users_root_is_not_root_here(self):
        self.start()
        self.served(EVIL)

        def work(tell):
            if os.fork() == 0:  # In a pid namespace of its own.
                try:
                    with self.connect() as session:
                        session.model(f"{EVIL}:own")
                    tell("found")
                except hoist.NotFound:
                    tell("not found")
                os._exit(0)
            os.wait()

        def unshared(tell):
            import ctypes
            if ctypes.CDLL(None).unshare(0x20000000) != 0:  # CLONE_NEWPID
                return tell("may not unshare")
            work(tell)

        with self.connect() as session:  # Root here may read it.
            session.model(f"{EVIL}:own")
        pid, said = start_as(0, unshared)
        with said:
            text = said.read()
        os.waitpid(pid, 0)
        if "may not" in text:
            self.skipTest(text)
        self.assertEqual(text, "not found\n")

    def test_root_of_a_container_is_no_admin_over_grpc(self):
        self.start()
        self.daemon.ctl("status")
        for kind in ("--user", "--pid"):
            said = self.hoistctl("drain", before=[
                "unshare", kind, "--fork",
                *(["--map-root-user"] if kind == "--user" else [])])
            if "unshare failed" in said:
                self.skipTest(said)
            self.assertIn("PERMISSION_DENIED", said.upper(), kind)
        self.assertNotIn("draining", self.daemon.ctl("status"))

    def hoistctl(self, *arguments, before=()):
        """What it prints, whatever becomes of it."""
        ctl = next(path for path in (
            self.daemon.binary.with_name("hoistctl"),
            self.daemon.binary.parents[1] / "client/ctl/hoistctl")
            if path.exists())
        done = subprocess.run(
            [*before, ctl, "--socket", self.daemon.grpc_socket, *arguments],
            capture_output=True, text=True)
        return done.stdout + done.stderr

    def test_who_cannot_be_looked_at_is_no_admin(self):
        """hoistd as a user of its own, whose /proc shows no other user's."""
        folder = tempfile.TemporaryDirectory(prefix="hoist-hidden-")
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o777)
        config = pathlib.Path(folder.name, "hoistd.toml")
        config.write_text(HIDDEN.format(folder.name))
        hidden = subprocess.Popen(
            ["unshare", "--mount", "sh", "-ec",
             "mount -t proc -o hidepid=2 proc /proc; exec setpriv --reuid "
             f"{OTHER} --regid {OTHER} --clear-groups {HOISTD} --config "
             f"{config}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True)
        self.addCleanup(hidden.stderr.close)
        self.addCleanup(hidden.wait)
        self.addCleanup(hidden.terminate)
        os.environ["HOIST_SOCKET"] = f"{folder.name}/hoistd.sock"
        self.addCleanup(os.environ.pop, "HOIST_SOCKET")

        def asked(uid):
            """Whether `uid` may forget OTHER's model."""
            def work(tell):
                with hoist.connect(connect_deadline=30) as session:
                    if uid == OTHER:
                        session.publish("m", "g",
                                        {"w": np.zeros(4096, np.uint8)},
                                        readers="everyone")
                        return tell("published")
                    try:
                        session.forget(session.model(f"{OTHER}:m"))
                        tell("forgot it")
                    except hoist.PermissionDenied:
                        tell("was refused")
            pid, said = start_as(uid, work)
            with said:
                text = said.read()
            os.waitpid(pid, 0)
            return text.strip()

        self.assertEqual(asked(OTHER), "published")
        self.assertIsNone(hidden.poll())
        self.assertEqual(asked(0), "was refused")


HIDDEN = """
[server]
socket = "{0}/hoistd.sock"
grpc_socket = "{0}/hoistd.grpc.sock"
socket_mode = "0666"
group = ""
admin_group = ""
[device]
backend = "emulated"
pool = "8MiB"
slab = "2MiB"
[host]
pool = "16MiB"
"""

if __name__ == "__main__":
    unittest.main()
