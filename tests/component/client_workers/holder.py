"""A worker that leases a group, says so, and holds it until it is killed."""

import sys

import hoist

socket, path, group = sys.argv[1:]
session = hoist.connect(socket, name="holder", connect_deadline=20)
model = session.register(path, "m")
lease = session.stage(model[group])
print("held", flush=True)
sys.stdin.read()
