"""Nodes on this machine: each is a process with a directory, a session and, for root, a network and limits of its own.

submitter ─┬─ keeper        holds the network in which the nodes meet; cleans up if the submitter is killed
           └─ node-0 ...    entered through `entry.py`, then whatever was asked for

Nothing is left in this machine's own network namespace by any death: the bridge is in the keeper's, each node's end
of its cable in the node's, and all of these go with the last process in them.
"""
