"""``make bench-peers``: the same work by other queues, on the same server in one run.

Each runs in an environment of its own below ``.bench/``, at the setting that its own
documentation gives for speed, by an adapter of its own (adapters/). Nothing here is needed
by sokka_pg itself.
"""
