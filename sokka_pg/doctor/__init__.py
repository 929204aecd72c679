"""Is this database fit for the queue, and is the queue well in it?

A check is data: a question to the server (one query, bounded in time) and a
pure judgement of its rows. ``examine`` asks them all and changes nothing.
"""

from sokka_pg.doctor.examination import examine, schema_findings
from sokka_pg.doctor.findings import Check, Finding, Level, Verdict

__all__ = ["Check", "Finding", "Level", "Verdict", "examine", "schema_findings"]
