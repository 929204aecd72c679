"""Count the words of many files: one candidate a file, one reducer for the whole.

    export DATABASE_URL=postgresql://localhost/shop     (after: sokka migrate)
    python examples/word_count.py [FOLDER]

Without a folder it counts Python's own sources.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from sokka_pg.workload import CandidateResult, ScatterGatherRequest, WorkloadScheduler

MOST_COMMON = 10


def count_words(path: str) -> dict[str, int]:
    """One candidate: the words of one file."""
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    return Counter(re.findall(r"[a-z]+", text.lower()))


def added_up(results: Sequence[CandidateResult]) -> Counter[str]:
    """The reducer: called once, with the answers in the order of the candidates."""
    total: Counter[str] = Counter()
    for each in results:
        total.update(each.result)
    return total


def main(folder: Path) -> int:
    paths = [str(path) for path in sorted(folder.glob("*.py"))]
    with WorkloadScheduler(os.environ["DATABASE_URL"]) as scheduler:
        request = ScatterGatherRequest(paths, max_running=8, retry=3, reducer=added_up)
        found = scheduler.scatter_gather(request, count_words)
    if not found.satisfied:
        print(f"not counted: {found.failure}", file=sys.stderr)
        return 1
    print(f"{len(paths)} files, {found.value.total()} words, {len(found.value)} different ones")
    for word, count in found.value.most_common(MOST_COMMON):
        print(f"{count:>8} {word}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("stdlib"))))
