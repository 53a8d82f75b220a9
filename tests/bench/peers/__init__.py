"""bench_peers.py's parts; scripts/bench_peers.py is its door.

models.py (llama.py, moe.py) says what is run, a *_peer.py or *_peers.py how one
way of running it is set up. worker.py is the process that one row is measured
in, parent.py starts those processes and hoistd, main.py is the command line and
the table.
"""
