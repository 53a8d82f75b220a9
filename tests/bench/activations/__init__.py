"""bench_activations.py's parts; scripts/bench_activations.py is its door.

model.py says what is trained, two_streams.py is an offloader written by hand,
rows.py sets up each way of keeping activations. main.py is the command line,
the measuring and the table.
"""
