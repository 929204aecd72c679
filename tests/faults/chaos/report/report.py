"""The page of a run: one file, without scripts, that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.judging.verdict import Verdict
from tests.faults.chaos.report import drawing, timeline
from tests.faults.chaos.report.plain import shown
from tests.faults.chaos.report.timeline import FAULTS
from tests.faults.chaos.words import Run

RULES = {
    "I1": "one live lease", "I2": "tokens only rise", "I3": "no old write",
    "I4": "renewal never revives", "I5": "versions rise", "I6": "legal moves only",
    "I7": "one final record", "I8": "no invention", "I9": "refused means untouched",
    "I10": "not early", "I11": "attempts count", "I12": "one task per key",
    "I13": "one task per tick", "I14": "a join fires once", "I15": "limits hold",
    "I16": "checkpoints never go back", "I17": "with its transaction or not at all",
    "I18": "tenants are apart", "I19": "nothing lost", "I20": "no stuck task",
    "I21": "nothing leaked", "I22": "workers recover", "I23": "missed ticks", "I24": "bounded",
    "L1": "the answers have an order", "E1": "no older token outside", "F1": "a fence holds",
    "F2": "a fence is current", "F16": "an old release is told nothing new",
    "P1": "no change without a call", "P3": "answers fit to changes",
}  # fmt: skip
SAID = {
    "pass": "No rule was broken, and every fault of the plan had an effect.",
    "FAIL": "A rule was broken.",
    "unknown": "No rule was broken, but the run does not count: not all of it bit.",
}
MOST_BROKEN, MOST_ROWS, MOST_STORY = 12, 60, 120
# Counts that have to be 0, and those that show that the faults were felt.
BAD = ("lost", "unexpected")
_CSS = Path(__file__).with_name("style.css")


def write_report(run: Run, verdict: Verdict, path: Path) -> None:
    """Write the page of a run to ``path``."""
    parts = [*_head(run, verdict), *_broken(verdict), *_task(run, verdict), *_figures(verdict),
             *_faults(run), *_course(run), *_story(verdict), *_foot(run)]  # fmt: skip
    title = f"{verdict.verdict}: fault run {run.seed}"
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{shown(title)}</title><style>{_CSS.read_text('utf-8')}</style></head>\n<body>"
        + "\n".join(parts)
        + "</body></html>\n",
        "utf-8", "replace",
    )  # fmt: skip


def _head(run: Run, verdict: Verdict) -> Iterator[str]:
    word = verdict.verdict if verdict.verdict in SAID else "unknown"
    majors = sorted({act.major for act in run.acts})
    facts = {
        "seed": str(run.seed), "length": f"{run.duration_s:g} s",
        "PostgreSQL": ", ".join(map(str, majors)) or "none",
        "acts": ", ".join(act.name for act in run.acts) or "none",
    }
    yield f'<header class="{word.lower()}"><div class="badge">{word}</div><div>'
    yield f"<h1>{shown(SAID[word])}</h1>"
    yield "<p>" + " · ".join(f"{k} <b>{shown(v)}</b>" for k, v in facts.items()) + "</p>"
    if run.command:
        yield f"<p>play it again: <code>{shown(run.command)}</code></p>"
    yield "</div></header>"


def _broken(verdict: Verdict) -> Iterator[str]:
    if verdict.broken:
        seen: dict[tuple[str, str], list[Fault]] = {}
        for fault in verdict.broken:
            seen.setdefault((fault.rule, fault.message), []).append(fault)
        yield '<section><h2>What was broken</h2><ul class="broken">'
        for (rule, message), faults in list(seen.items())[:MOST_BROKEN]:
            first = faults[0]
            yield (
                f"<li><b>{shown(rule)} {shown(RULES.get(rule, ''))}</b> {shown(message)}"
                f"<small>{shown(first.act)} · {shown(first.task)}"
                + (f" · change {first.pos}" if first.pos else "")
                + (f" · and {len(faults) - 1} times more" if len(faults) > 1 else "")
                + "</small></li>"
            )
        if (more := len(seen) - MOST_BROKEN) > 0:
            yield f"<li>and {more} more</li>"
        yield "</ul></section>"
    if verdict.why:
        yield "<section><h2>Why the run does not count</h2><ul>"
        yield from (f"<li>{shown(each)}</li>" for each in verdict.why)
        yield "</ul></section>"


def _task(run: Run, verdict: Verdict) -> Iterator[str]:
    """The task that failed, else the one that was most fought for."""
    life = shown_task(run, verdict)
    if life is None:
        return
    failing = bool(verdict.broken)
    refused = sum(mark.kind == "refused" for mark in life.marks)
    what = "The task that shows it" if failing else "The most contested task"
    yield (
        f"<section><h2>{what}</h2><p><code>{shown(life.task)}</code> · act {shown(life.act)}"
        f" · {shown(life.kind)} on {shown(life.topic)} · <b>{_count(len(life.leases), 'lease')}"
        f"</b>, <b>{_count(refused, 'refused write')}</b></p>"
    )
    yield '<div class="wide">' + drawing.task_drawing(life) + "</div>" + LEGEND
    yield from _events(life, failing)
    yield "</section>"


def shown_task(run: Run, verdict: Verdict) -> timeline.TaskLife | None:
    for fault in verdict.broken:
        for act in run.acts:
            if act.name == fault.act:
                task = fault.task.split()[-1] if fault.task else ""
                life = timeline.life_of(act, task, fault.pos)
                if life.stays or life.marks:
                    return life
    best = max(run.acts, key=timeline.refused_calls, default=None)
    most = timeline.most_contested(best) if best is not None else None
    return timeline.life_of(best, most) if best is not None and most is not None else None


LEGEND = (
    '<p class="legend"><span><i class="k lease"></i>lease, live</span>'
    '<span><i class="k over"></i>over, not yet taken back</span>'
    '<span><i class="k left"></i>time left when it was taken</span>'
    '<span><i class="k dot"></i>write accepted</span>'
    '<span><i class="k square"></i>ended or gave up the lease</span>'
    '<span><b class="x">&times;</b>write refused</span>'
    '<span><i class="k wrong"></i>accepted though stale</span>'
    '<span><b class="q">?</b>no answer</span>'
    '<span><i class="k tick"></i>heartbeat</span>'
    '<span><i class="k effect"></i>effect elsewhere</span>'
    '<span><i class="k trouble"></i>fault</span></p>'
)


def _events(life: timeline.TaskLife, opened: bool) -> Iterator[str]:
    rows = timeline.rows(life)
    begin = life.span[0]
    yield (
        f"<details{' open' if opened else ''}><summary>all that happened to it</summary>"
        '<div class="wide"><table><tr><th>after</th><th>who</th><th>what</th><th>token</th>'
        "<th>and then</th></tr>"
    )
    for at, who, what, token, fate in rows[:MOST_ROWS]:
        given = "" if token is None else f"{life.ordinal(token)} <small>{token}</small>"
        yield (
            f'<tr class="{shown(fate.partition(":")[0])}"><td class="n">'
            f"{(at - begin) / 1e9:.3f} s</td><td>{shown(who)}</td><td>{shown(what)}</td>"
            f"<td>{given}</td><td>{shown(fate)}</td></tr>"
        )
    if len(rows) > MOST_ROWS:
        yield f'<tr><td colspan="5">and {len(rows) - MOST_ROWS} more</td></tr>'
    yield "</table></div></details>"


def _figures(verdict: Verdict) -> Iterator[str]:
    if not verdict.counts:
        return
    yield '<section><h2>Counts</h2><dl class="tiles">'
    for name, count in verdict.counts.items():
        bad = " bad" if count and name in BAD else ""
        label = name.replace("_", " ")
        yield f'<div class="tile{bad}"><dd>{count:,}</dd><dt>{shown(label)}</dt></div>'
    yield "</dl></section>"


def _faults(run: Run) -> Iterator[str]:
    """Each fault once: where it was fired, how often, and what shows that it was felt."""
    yield '<section><h2>Faults</h2><div class="wide"><table class="faults">'
    yield "<tr><th></th><th>fault</th><th>fired</th><th>felt</th><th>seen by</th></tr>"
    for fault in sorted(_planned(run), key=lambda name: int(name[1:] or 0)):
        fired = sum(i.fault == fault for act in run.acts for i in act.injections)
        bites = [(act, b) for act in run.acts for b in act.bites if b.fault == fault]
        felt = sum(bite.count for _, bite in bites)
        seen = "; ".join(f"{act.name}: {bite.evidence}" for act, bite in bites)
        why = "; ".join(
            f"{act.name}: {act.not_run[fault]}" for act in run.acts if fault in act.not_run
        ) or run.not_run.get(fault, "")
        state = "felt" if felt else "none" if bites or fired else "not"
        words = {"felt": "felt", "none": "no effect", "not": "not run"}[state]
        told = seen if not why else f"{seen}; not run: {why}" if seen else why
        yield (
            f'<tr class="{state}"><td><span class="chip">{words}</span></td>'
            f"<td><b>{shown(fault)}</b> {shown(FAULTS.get(fault, ''))}</td>"
            f'<td class="n">{fired or "&ndash;"}</td><td class="n">{felt or "&ndash;"}</td>'
            f"<td>{shown(told)}</td></tr>"
        )
    for act, why in run.not_run.items():
        if act not in FAULTS:
            yield (
                f'<tr class="not"><td><span class="chip">not run</span></td>'
                f"<td>act <b>{shown(act)}</b></td><td></td><td></td><td>{shown(why)}</td></tr>"
            )
    yield "</table></div></section>"


def _planned(run: Run) -> set[str]:
    names: set[str] = {name for name in run.not_run if name in FAULTS}
    for act in run.acts:
        names |= {bite.fault for bite in act.bites} | {i.fault for i in act.injections}
        names |= set(act.not_run)
    return {name for name in names if name in FAULTS}


def _course(run: Run) -> Iterator[str]:
    picture = drawing.run_drawing(run.acts, FAULTS)
    if picture:
        yield f'<section><h2>The run</h2><div class="wide">{picture}</div>'
        yield (
            '<p class="legend"><span><i class="k granted"></i>leases granted</span>'
            '<span><i class="k ended"></i>tasks ended</span>'
            '<span><i class="k fired"></i>a fault, until it was healed</span></p></section>'
        )


def _story(verdict: Verdict) -> Iterator[str]:
    if verdict.story:
        lines = verdict.story[:MOST_STORY]
        if len(verdict.story) > MOST_STORY:
            lines = [*lines, f"... and {len(verdict.story) - MOST_STORY} more lines"]
        yield "<section><h2>The shortest history of a task that fails</h2><pre>"
        yield shown("\n".join(lines)) + "</pre></section>"


def _foot(run: Run) -> Iterator[str]:
    yield "<footer>" + " · ".join(_versions(run)) + "</footer>"


def _versions(run: Run) -> Iterable[str]:
    return (f"{shown(name)} {shown(version)}" for name, version in run.versions.items())


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


