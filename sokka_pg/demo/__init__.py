"""The demo: a job over files nobody here wrote, while workers are killed and frozen.

``run.play`` is the whole of it. It starts an embedded server, enqueues one task
per source file of this interpreter's standard library, lets four worker
processes parse them, kills one with its leases in hand, freezes another until
its tasks belong to somebody else, and then compares what stands in the table
with the same counts made by one plain process.

Nothing is imported here: the plain process shares no more than ``measure``.
"""
