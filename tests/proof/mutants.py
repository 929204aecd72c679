"""Seeded defects: a proof that cannot fail proves nothing.

Each is a replacement of text in one file of sql/, which must be there exactly once (or as
often as it says), loaded over a copy of the schema.
"""

from __future__ import annotations

from dataclasses import dataclass

Replacement = tuple[str, str]


@dataclass(frozen=True)
class Mutant:
    """A defect, and the theme of interleavings that shows it soonest."""

    name: str
    file: str
    theme: str
    replacements: tuple[Replacement, ...]
    # After which line the text to be replaced is looked for.
    within: str = ""
    # From where the tests search: the whole search found it soon after.
    seed: int = 1000

    def change(self, file: str, text: str) -> str:
        if file != self.file:
            return text
        head, mark, body = text.partition(self.within) if self.within else ("", "", text)
        if self.within and not mark:
            raise LookupError(f"{self.name}: {self.file} has no {self.within!r}")
        end = body.find("\n$$;") if self.within else len(body)
        part, rest = body[:end], body[end:]
        for old, new in self.replacements:
            if part.count(old) != 1:
                raise LookupError(f"{self.name}: {part.count(old)} times in {self.file}: {old!r}")
            part = part.replace(old, new)
        return head + mark + part + rest


LOCKS = "functions/core/locks.sql"
MOVES = "functions/core/moves.sql"
TOGETHER = "functions/workers/settle_together.sql"
SWEEP = "functions/maintenance/sweep.sql"
FIRE = "functions/schedules/fire_schedules.sql"
TRY = "functions/locks/try_lock.sql"
ENDING = "create function sokka.lock_for_ending"
KEEPING = "create function sokka.lock_for_keeping"

MUTANTS = (
    Mutant(
        "an end accepts any token of its owner",
        LOCKS,
        "queue",
        (
            (
                "if not sokka.lease_holds(v_task.status, v_task.pid, v_task.token,",
                "if not sokka.lease_holds(v_task.status, v_task.pid, p_token,",
            ),
        ),
        ENDING,
        seed=1004,
    ),
    Mutant(
        "a batch ends tasks by any token",
        "functions/workers/terminate_task.sql",
        "batches",
        (
            (
                " and t.token = m.token\n           and t.pid = p_pid and t.status = 'running'",
                " and t.status = 'running'",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "a batch fails and puts to sleep by any token",
        TOGETHER,
        "batches",
        (
            (
                " and t.token = m.token\n"
                "                   and t.pid = p_pid and t.status = 'running'",
                " and t.status = 'running'",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "a batch fails and puts to sleep after the lease",
        TOGETHER,
        "batches",
        (
            (
                "where u.wait is not null and t.lease_expires_at > v_now;",
                "where u.wait is not null;",
            ),
            (
                "u.place and u.wait is not null and t.lease_expires_at > v_now",
                "u.place and u.wait is not null",
            ),
            ("where u.wait is null and t.lease_expires_at > v_now;", "where u.wait is null;"),
        ),
        seed=1000,
    ),
    Mutant(
        "an end judges the row before it locks it",
        LOCKS,
        "fences",
        (("where t.task_id = p_task_id for update;", "where t.task_id = p_task_id;"),),
        ENDING,
        seed=1007,
    ),
    Mutant(
        "a lease is live at its last instant",
        LOCKS,
        "queue",
        (
            (
                "and p_token = p_claimed_token and p_lease_expires_at > p_now",
                "and p_token = p_claimed_token and p_lease_expires_at >= p_now",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "extend counts from the begin of the transaction",
        "functions/workers/extend_lease.sql",
        "cancels",
        (
            (
                "sokka.clock() + coalesce(v_lease, sokka.lease_of(v_task.topic))",
                "proof.began() + coalesce(v_lease, sokka.lease_of(v_task.topic))",
            ),
        ),
        seed=1002,
    ),
    Mutant(
        "a claim waits for rows and takes them again",
        "functions/workers/claim.sql",
        "queue",
        (("limit p_max\n                   for update skip locked) s", "limit p_max) s"),),
        seed=1000,
    ),
    Mutant(
        "the sweep takes back by the id alone",
        SWEEP,
        "queue",
        (
            (
                "where t.task_id = v_id for update skip locked;",
                "where t.task_id = v_id for update;",
            ),
            ("continue when v_task.status <> 'running' or v_task.lease_expires_at > v_now;", ""),
        ),
        seed=2008,
    ),
    Mutant(
        "a revoke ignores the version",
        "functions/operators/revoke_lease.sql",
        "queue",
        (("elsif v_task.record_ver <> p_record_ver then", "elsif false then"),),
        seed=1001,
    ),
    Mutant(
        "a fence holds nothing",
        LOCKS,
        "fences",
        (("where t.task_id = p_task_id for key share;", "where t.task_id = p_task_id;"),),
        "create function sokka.lock_for_fence",
        seed=1030,
    ),
    Mutant(
        "a fence stops heartbeats",
        LOCKS,
        "fences",
        (("for key share;", "for no key update;"),),
        "create function sokka.lock_for_fence",
        seed=1009,
    ),
    Mutant(
        "a cancel request waits for the fence",
        "functions/operators/cancel_task.sql",
        "fences",
        (("for no key update;", "for update;"),),
        seed=1009,
    ),
    Mutant(
        "a cancel judges a row that it has not locked",
        "functions/operators/cancel_task.sql",
        "cancels",
        (("where t.task_id = p_task_id for no key update;", "where t.task_id = p_task_id;"),),
        seed=1035,
    ),
    Mutant(
        "a snooze costs an attempt",
        "functions/workers/snooze_task.sql",
        "queue",
        (("greatest(v_task.attempt - 1, 0)", "v_task.attempt"),),
        seed=1000,
    ),
    Mutant(
        "a retry is not counted",
        "functions/workers/retry_task.sql",
        "queue",
        (("v_task.attempt, v_failures,\n", "v_task.attempt, v_task.failures,\n"),),
        seed=1004,
    ),
    Mutant(
        "one lost lease too many",
        MOVES,
        "queue",
        (
            (
                "elsif p_task.losses >= p_task.max_losses then",
                "elsif p_task.losses > p_task.max_losses then",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "a batch revives leases that are over",
        "functions/workers/extend_leases.sql",
        "batches",
        (
            (
                "where t.task_id = any (v_locked) and t.lease_expires_at > v_now;",
                "where t.task_id = any (v_locked);",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "a grant counts by another clock",
        "functions/workers/claim.sql",
        "queue",
        (("v_now := sokka.clock();", "v_now := clock_timestamp();"),),
        "create function sokka.grant_leases",
        seed=1000,
    ),
    Mutant(
        "a token that was drawn before",
        "functions/workers/claim.sql",
        "queue",
        (
            (
                "token = nextval('sokka.token_seq')",
                "token = nextval('sokka.token_seq') - 2 * t.attempt",
            ),
        ),
        "create function sokka.grant_leases",
        seed=1000,
    ),
    Mutant(
        "due one second early",
        SWEEP,
        "queue",
        (("and t.run_at <= v_started\n", "and t.run_at <= v_started + interval '1 second'\n"),),
        "create function sokka.wake_due",
        seed=1008,
    ),
    Mutant(
        "a join counts its inbox twice",
        "functions/joins/advance_joins.sql",
        "joins",
        (
            (
                "delete from sokka.join_inbox i where i.join_id = p_id and i.pos > p_from\n"
                "        returning i.pos, i.task_id, i.candidate, i.held",
                "select i.pos, i.task_id, i.candidate, i.held from sokka.join_inbox i\n"
                "         where i.join_id = p_id and i.pos > p_from",
            ),
        ),
        seed=1000,
    ),
    Mutant(
        "nobody comes back to what a join has missed",
        "functions/joins/advance_joins.sql",
        "joins",
        (
            ("if v_full or v_left", "if false"),
            (
                " or v_written is distinct from (v_hint ->> 'written')::bigint then",
                " then",
            ),
        ),
        seed=1001,
    ),
    Mutant(
        "a held child is let go beyond the limit",
        "functions/joins/advance_joins.sql",
        "joins",
        (("p_join.max_running - p_join.in_flight;", "p_join.max_running;"),),
        seed=1000,
    ),
    Mutant(
        "a tick fires without its unique row",
        FIRE,
        "schedules",
        (
            (
                " and s.next_at = f.due_at and s.paused_at is null\n    ), ticks",
                "\n    ), ticks",
            ),
            (
                "select t.schedule_id, t.generation, t.tick, v_now,",
                "select t.schedule_id, nextval('sokka.queue_pos_seq') + 1000, t.tick, v_now,",
            ),
        ),
        seed=1002,
    ),
    Mutant(
        "a lock is taken from a live owner",
        TRY,
        "locks",
        (("where l.key = p_key and l.lock_expires_at <= sokka.clock()", "where l.key = p_key"),),
        seed=1000,
    ),
    Mutant(
        "a renewal revives a lock",
        TRY,
        "locks",
        (("elsif p_lock.lock_expires_at <= p_now then", "elsif false then"),),
        seed=1000,
    ),
    Mutant(
        "assert_lock holds nothing",
        TRY,
        "locks",
        (("where l.key = p_key for key share;", "where l.key = p_key;"),),
        seed=1006,
    ),
    Mutant(
        "a stream takes a repeated batch",
        "functions/streams/append_stream.sql",
        "streams",
        (("if p_after <> v_stream.last_seq then", "if p_after > v_stream.last_seq then"),),
        seed=1004,
    ),
    Mutant(
        "a step is written under a dead lease",
        LOCKS,
        "streams",
        (
            (
                "v_task.lease_expires_at, p_pid, p_token, sokka.clock()) then",
                "'infinity', p_pid, p_token, sokka.clock()) then",
            ),
        ),
        KEEPING,
        seed=1000,
    ),
)


def named(name: str) -> Mutant:
    (found,) = (mutant for mutant in MUTANTS if mutant.name == name)
    return found
