"""``make bench``: what this checkout does on this machine, beside what the server alone can do.

    python -m tests.bench --parts floor,drain --rounds 5

Everything runs on a server of its own, durable (fsync and synchronous_commit on), with the
schema of this checkout. Each figure is the median of several runs, in turn with those
that it is compared with.
"""
