"""The promises of README.md, word for word, and the tests behind each."""

from __future__ import annotations

PROMISES: list[tuple[str, tuple[str, ...]]] = [
    (
        "A committed `create_task` is never lost (with the server's durability settings; "
        "across a failover only with synchronous replication).",
        (
            "tests/docs/test_promises.py::test_committed_tasks_outlive_a_killed_server",
            "tests/docs/test_promises.py::"
            "test_committed_tasks_outlive_a_failover_to_a_synchronous_standby",
            "tests/sql/test_create_task.py::"
            "test_a_creation_counts_only_when_its_transaction_commits",
            "tests/contract/test_caller_transactions.py::"
            "test_a_task_exists_if_and_only_if_its_callers_transaction_committed",
        ),
    ),
    (
        "Execution is at least once. Each task has exactly one terminal record.",
        (
            "tests/faults/test_worker_processes.py::"
            "test_tasks_of_a_killed_worker_are_recovered_without_anyones_help",
            "tests/sql/test_guards.py::test_a_move_that_is_not_in_the_contract_is_refused",
            "tests/races/test_fences.py::"
            "test_of_an_end_and_the_fence_that_ends_the_task_one_wins_and_none_deadlocks",
            "tests/sql/test_history.py::"
            "test_history_and_counters_are_what_a_model_of_the_contract_says",
        ),
    ),
    (
        "Of all the leases a task ever had, only the newest live one can write: every other "
        "write is refused **by the database**, changes nothing, and says why.",
        (
            "tests/sql/test_verbs_by_state.py::"
            "test_a_verb_without_a_live_newest_lease_is_refused_and_changes_nothing",
            "tests/sql/test_settle.py::"
            "test_members_without_a_live_newest_lease_are_refused_one_by_one",
            "tests/races/test_take_overs.py::"
            "test_who_waited_until_its_lease_was_over_is_told_so",
            "tests/faults/test_worker_processes.py::"
            "test_a_paused_owner_that_wakes_up_is_refused_everything",
        ),
    ),
    (
        "Effects committed in the transaction that **ends** the task (or records a checkpoint) "
        "happen exactly once. Effects committed with a lease check alone are never written by a "
        "stale lease, but repeat with the attempt, unless keyed by task_id. Effects elsewhere are "
        "at least once, and carry a token with which the other store can fence them.",
        (
            "tests/contract/test_fenced_transactions.py::"
            "test_writes_and_the_end_of_the_task_are_one",
            "tests/contract/test_fenced_transactions.py::"
            "test_without_the_end_the_writes_are_committed_and_the_task_runs_on",
            "tests/contract/test_fenced_transactions.py::test_a_ghost_writes_nothing",
            "tests/faults/test_worker_outcomes.py::"
            "test_an_effect_and_the_end_of_its_task_are_one_commit",
            "tests/docs/test_promises.py::"
            "test_a_checkpoint_and_the_writes_beside_it_are_one_commit",
            "tests/contract/test_conformance.py::test_a_fence_only_lets_tokens_rise",
        ),
    ),
    (
        "A lease is a permission, not proof that no older process still runs.",
        (
            "tests/faults/test_worker_processes.py::"
            "test_a_paused_owner_that_wakes_up_is_refused_everything",
            "tests/faults/test_worker_connections.py::"
            "test_a_late_end_is_refused_once_and_said_once",
        ),
    ),
    (
        "All lease, run-at and schedule decisions use the database's clock. A worker's clock only "
        "bounds its own watchdog.",
        (
            "tests/faults/test_worker_connections.py::"
            "test_a_wrong_clock_of_the_worker_changes_nothing",
            "tests/sql/test_create_task.py::test_a_task_for_later_sleeps_until_then",
            "tests/docs/test_promises.py::test_only_the_databases_clock_ends_a_lease",
        ),
    ),
]
