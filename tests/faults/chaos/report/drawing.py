"""Two drawings as SVG: the life of one task, and a whole run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.faults.chaos.report.plain import shown
from tests.faults.chaos.report.timeline import Lease, Mark, TaskLife, granted_by
from tests.faults.chaos.words import Act, Injection

WIDTH, LEFT, RIGHT = 1120, 150, 18
LANE, HEAD = 50, 58
MOST_LANES = 14
STATUSES = {
    "starting": "ready", "running": "running", "snoozed": "sleeps",
    "terminated": "terminated", "failed": "failed",
}  # fmt: skip


class Scale:
    """Nanoseconds to pixels."""

    def __init__(self, begin: int, end: int) -> None:
        room = max(end - begin, 1_000_000)
        self.begin, self.end = begin - room // 50, end + room // 25

    def __call__(self, at: int) -> float:
        share = (min(max(at, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def ticks(self, most: int = 10) -> Iterator[tuple[float, str]]:
        """Round seconds since the begin: x and text."""
        seconds = (self.end - self.begin) / 1e9
        step = next(
            s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600,
                        1800, 3600, 10**9)
            if seconds / s <= most
        )
        origin = self.begin + (self.end - self.begin) * 2 // 106
        n = 0
        while (at := origin + int(n * step * 1e9)) <= self.end:
            yield self(at), f"{n * step:g} s"
            n += 1


# --- one task -------------------------------------------------------------------


def task_drawing(life: TaskLife) -> str:
    """Who held which lease when, what they wrote, and what was refused."""
    lanes = life.pids[-MOST_LANES:]
    scale = Scale(*life.span)
    bottom = HEAD + LANE * max(len(lanes), 1)
    parts = [_axis(scale, bottom), *_statuses(life, scale), *_grounds(lanes)]
    parts += [_whole(each, scale, bottom) for each in life.troubles if each.about not in _of(lanes)]
    for n, pid in enumerate(lanes):
        top = HEAD + n * LANE
        parts += [_trouble(t, scale, top) for t in life.troubles if _sits_on(t.about, pid)]
        parts += [_bar(lease, life, scale, top) for lease in life.leases if lease.pid == pid]
        parts += _marks([mark for mark in life.marks if mark.pid == pid], life, scale, top)
    if life.at_fault is not None:
        parts.append(_broken_at(scale(life.at_fault), bottom))
    return _svg(bottom + 42, f"The leases of task {life.task}", parts)


def _broken_at(x: float, bottom: int) -> str:
    anchor = "end" if x > WIDTH - 80 else "middle"
    return (
        f'<line class="broken" x1="{x}" x2="{x}" y1="{HEAD - 26}" y2="{bottom}"/>'
        f'<text class="broken" x="{x}" y="{bottom + 34}" text-anchor="{anchor}">'
        "rule broken here</text>"
    )


def _of(lanes: Sequence[str]) -> set[str]:
    return set(lanes) | {pid.partition(".")[0] for pid in lanes}


def _sits_on(about: str, pid: str) -> bool:
    return bool(about) and about in (pid, pid.partition(".")[0])


def _axis(scale: Scale, bottom: int) -> str:
    return "".join(
        f'<line class="grid" x1="{x}" x2="{x}" y1="{HEAD}" y2="{bottom}"/>'
        f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        for x, text in scale.ticks()
    )


def _statuses(life: TaskLife, scale: Scale) -> Iterator[str]:
    yield '<text class="lane" x="8" y="28">the task</text>'
    for stay in life.stays:
        x = scale(stay.began)
        width = max(scale(stay.ended if stay.ended is not None else scale.end) - x, 2)
        word = STATUSES.get(stay.status, stay.status)
        final = stay.status in ("terminated", "failed")
        yield (
            f'<rect class="status {shown(stay.status)}" x="{x}" y="12" height="24" rx="3"'
            f' width="{8 if final else width:.1f}"><title>{shown(word)}</title></rect>'
        )
        if final:
            side, anchor = (x - 4, "end") if x > WIDTH - 120 else (x + 12, "start")
            yield (
                f'<text class="final" x="{side}" y="50" text-anchor="{anchor}">'
                f"{shown(word)}</text>"
            )
        elif width > 7 * len(word) + 8:
            yield f'<text class="inside" x="{x + 5}" y="28">{shown(word)}</text>'


def _grounds(lanes: Sequence[str]) -> Iterator[str]:
    for n, pid in enumerate(lanes):
        top = HEAD + n * LANE
        yield (
            f'<line class="rule" x1="0" x2="{WIDTH}" y1="{top}" y2="{top}"/>'
            f'<text class="lane" x="8" y="{top + 30}">{shown(_clip(pid or "somebody"))}'
            f"<title>{shown(pid)}</title></text>"
        )


def _bar(lease: Lease, life: TaskLife, scale: Scale, top: int) -> str:
    """Solid while the lease was live, hatched from its expiry until it was taken back."""
    stop = lease.over_at if lease.ended is None else min(lease.ended, lease.over_at)
    x, end = scale(lease.began), scale(stop)
    title = f"{life.ordinal(lease.token)} lease, token {lease.token}, {lease.how or 'held'}"
    parts = [
        f'<rect class="lease" x="{x}" y="{top + 18}" height="18" rx="2"'
        f' width="{max(end - x, 2):.1f}"><title>{shown(title)}</title></rect>'
    ]
    if lease.expired:
        late = scale(lease.ended if lease.ended is not None else scale.end)
        parts.append(
            f'<rect class="over" x="{end}" y="{top + 18}" height="18"'
            f' width="{max(late - end, 0):.1f}"><title>over</title></rect>'
            f'<line class="expiry" x1="{end}" x2="{end}" y1="{top + 13}" y2="{top + 41}">'
            "<title>its lease is over</title></line>"
        )
    if lease.cut_short:
        parts.append(
            f'<rect class="left" x="{end}" y="{top + 18}" height="18"'
            f' width="{max(scale(lease.over_at) - end, 2):.1f}">'
            "<title>it had this left</title></rect>"
        )
    parts.append(
        f'<text class="token" x="{x + 1}" y="{top + 14}">{life.ordinal(lease.token)}</text>'
    )
    return "".join(parts)


def _marks(marks: Sequence[Mark], life: TaskLife, scale: Scale, top: int) -> Iterator[str]:
    y = top + 27
    for mark in marks:
        x = scale(mark.at)
        title = f"{mark.what}, {life.ordinal(mark.token)} token" + (
            f": {mark.why}" if mark.why else ""
        )
        shape = {
            "beat": f'<line class="beat" x1="{x}" x2="{x}" y1="{y + 3}" y2="{y + 9}">',
            "write": f'<circle class="write" cx="{x}" cy="{y}" r="4">',
            "end": f'<rect class="end" x="{x - 5}" y="{y - 5}" width="10" height="10">',
            "effect": f'<circle class="effect" cx="{x}" cy="{y + 17}" r="3">',
            "unknown": f'<text class="unknown" x="{x}" y="{y + 5}" text-anchor="middle">?',
            "wrong": f'<circle class="wrong" cx="{x}" cy="{y}" r="7">',
            "refused": f'<path class="refused" d="M{x - 5} {y - 5}l10 10m0-10l-10 10">',
        }[mark.kind]
        tag = shape[1:].split(" ", 1)[0]
        yield f"{shape}<title>{shown(title)}</title></{tag}>"


def _trouble(each: Injection, scale: Scale, top: int) -> str:
    x = scale(each.began)
    width = max(scale(each.ended if each.ended is not None else scale.end) - x, 3)
    word = {"F1": "killed", "F2": "paused", "F3": "backend ended", "F6": "cut", "F7": "cut off"}
    text = word.get(each.fault, each.fault)
    return (
        f'<rect class="trouble" x="{x}" y="{top + 6}" height="{LANE - 9}" width="{width:.1f}">'
        f"<title>{shown(each.fault)} {shown(text)}</title></rect>"
        f'<text class="trouble" x="{x + 3}" y="{top + LANE - 5}">{shown(text)}</text>'
    )


def _whole(each: Injection, scale: Scale, bottom: int) -> str:
    x = scale(each.began)
    width = max(scale(each.ended if each.ended is not None else scale.end) - x, 3)
    text = {"F4": "server crashed", "F5": "server frozen", "F9": "failover", "F10": "disk full"}
    return (
        f'<rect class="whole" x="{x}" y="{HEAD - 6}" height="{bottom - HEAD + 6}"'
        f' width="{width:.1f}"/><text class="trouble" x="{x + 3}" y="{HEAD + 6}">'
        f"{shown(text.get(each.fault, each.fault))}</text>"
    )


# --- the whole run --------------------------------------------------------------

ROW, CHART = 22, 84
_NAMED_BAND_S = 4


def run_drawing(acts: Sequence[Act], names: dict[str, str]) -> str:
    """All acts on one axis: how much was done, and when which fault was fired."""
    timed = [act for act in acts if act.ended > act.began]
    if not timed:
        return ""
    scale = Scale(min(act.began for act in timed), max(act.ended for act in timed))
    faults = sorted({i.fault for act in timed for i in act.injections}, key=_number)
    foot = 30 + CHART
    bottom = foot + 14 + ROW * len(faults)
    parts = [*_bands(timed, scale, bottom), *_throughput(timed, scale, foot)]
    for n, fault in enumerate(faults):
        y = foot + 14 + n * ROW
        label = f"{fault} {names.get(fault, '')}"
        parts.append(
            f'<line class="rule" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
            f'<text class="lane" x="8" y="{y + 15}">{shown(_clip(label, 22))}</text>'
        )
        parts += [_fired(i, scale, y) for act in timed for i in act.injections if i.fault == fault]
    parts += [
        f'<text class="tick" x="{x}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
        for x, text in scale.ticks()
    ]
    return _svg(bottom + 24, "The run: what was done, and when which fault was fired", parts)


def _bands(acts: Sequence[Act], scale: Scale, bottom: int) -> Iterator[str]:
    for n, act in enumerate(acts):
        x, end = scale(act.began), scale(act.ended)
        yield (
            f'<rect class="band b{n % 2}" x="{x}" y="4" width="{end - x:.1f}"'
            f' height="{bottom - 4}"/>'
            f'<text class="act" x="{x + 5}" y="19">{shown(act.name)} · {act.major}</text>'
        )


def _throughput(acts: Sequence[Act], scale: Scale, foot: int) -> Iterator[str]:
    """Leases granted and tasks ended in each slice, as two lines with one scale."""
    slice_ns = max((scale.end - scale.begin) // 110, 1)
    granted: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    for act in acts:
        for change in act.changes:
            at = (change.at - act.offset_us) * 1000
            if change.source == "finished_tasks" and change.old is None:
                ended[(at - scale.begin) // slice_ns] += 1
            elif change.source == "tasks" and granted_by(change):
                granted[(at - scale.begin) // slice_ns] += 1
    most = max([*granted.values(), *ended.values(), 1])
    per_s = most / (slice_ns / 1e9)
    yield (
        f'<text class="lane" x="8" y="{foot - CHART + 14}">{per_s:.0f} a second</text>'
        f'<text class="lane" x="8" y="{foot}">0</text>'
        f'<line class="rule" x1="{LEFT}" x2="{WIDTH}" y1="{foot}" y2="{foot}"/>'
    )
    for name, counts in (("granted", granted), ("ended", ended)):
        points = [
            f"{scale(at)},{foot - (CHART - 10) * counts[n] / most:.1f}"
            for n in range(112)
            if acts[0].began <= (at := scale.begin + n * slice_ns + slice_ns // 2) <= acts[-1].ended
        ]
        yield f'<polyline class="{name}" points="{" ".join(points)}"/>'


def _fired(each: Injection, scale: Scale, y: int) -> str:
    x = scale(each.began)
    width = max(scale(each.ended if each.ended is not None else scale.end) - x, 2)
    return (
        f'<rect class="fired" x="{x}" y="{y + 4}" height="{ROW - 8}" width="{width:.1f}">'
        f"<title>{shown(each.fault)} {shown(each.about)}</title></rect>"
    )


def _number(fault: str) -> int:
    digits = fault[1:]
    return int(digits) if digits.isdigit() else 99


def _clip(text: str, most: int = 16) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _svg(height: int, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"'
        f' aria-label="{shown(label)}">{"".join(parts)}</svg>'
    )
