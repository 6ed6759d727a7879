"""The real cores in a simulated cluster: one seed, one trace.

Time is a heap, the network and the processes are made up, and every choice comes from one `random.Random(seed)`.
A seed that fails is a bug report: `python -m holdfast.sim SEED` tells its story again.
"""
