"""Quick figures of this machine: several interleaved runs, medians, ratios.

Everything happens in a scratch schema, which is dropped at the end; what is
queued elsewhere in the database is neither read nor touched. Figures are told
with settings and versions, since without them they mean nothing.
"""

from sokka_pg.bench.figures import Figure, Ratio, Report
from sokka_pg.bench.session import PARTS, Plan, run
from sokka_pg.bench.trials import Tell

__all__ = ["PARTS", "Figure", "Plan", "Ratio", "Report", "Tell", "run"]
