"""What the tests of metrics share: scraping, and reading what came."""

import pathlib
import re
import socket
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

LINE = re.compile(r'([a-z_]+)(?:\{(.*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(60)
    client.connect(path)
    return client


def rest(client):
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def get(path, target="/metrics"):
    with connect(path) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        head, _, body = rest(client).partition(b"\r\n\r\n")
    return head.decode(), body.decode()


def serves(path):
    """False: not yet. It is there before it listens."""
    try:
        connect(path).close()
    except (FileNotFoundError, ConnectionRefusedError, PermissionError):
        return False
    return True


class Samples(dict):
    """{(name, (("label", "value"), ...)): value}"""

    def __init__(self, text):
        super().__init__()
        for line in text.splitlines():
            if not line.startswith("#"):
                name, labels, value = LINE.fullmatch(line).groups()
                self[name, tuple(sorted(LABEL.findall(labels or "")))] = \
                    float(value)

    def of(self, name, **labels):
        """The sum of those that have these labels; there must be one."""
        found = [value for (one, has), value in self.items()
                 if one == name and labels.items() <= dict(has).items()]
        assert found, f"no {name} {labels}"
        return sum(found)


def scrape(daemon):
    head, body = get(str(daemon.path / "hoistd.metrics.sock"))
    assert head.startswith("HTTP/1.1 200 "), head
    return Samples(body)
