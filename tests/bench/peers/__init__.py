"""bench_peers.py's parts; scripts/bench_peers.py is its door.

models.py says what is run, a peer_*.py how one way of running it is set up,
worker.py is the process that one row is measured in, parent.py starts those
processes and hoistd, main.py is the command line and the table.
"""
