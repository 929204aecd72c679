"""How a task and what is below it look: one line a task, a parent above its children."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from rich.text import Text
from rich.tree import Tree

from sokka_pg.cli.output import console, printable
from sokka_pg.model import Join, Status, TreeNode

_STYLES = {
    Status.TERMINATED: "green", Status.FAILED: "red", Status.RUNNING: "yellow",
}  # fmt: skip


def draw(nodes: Sequence[TreeNode], joins: Mapping[UUID, Join]) -> None:
    """Print the tree of ``nodes``, root first; a branch says how much of it is missing."""
    below: defaultdict[UUID | None, list[TreeNode]] = defaultdict(list)
    for node in nodes[1:]:
        below[node.parent_task_id].append(node)
    root = Tree(_label(nodes[0], None, joins.get(nodes[0].task_id)))
    # A loop, not a recursion: how deep tasks may stand is the installation's choice.
    open_branches = [(nodes[0], root)]
    while open_branches:
        parent, branch = open_branches.pop()
        for child in below[parent.task_id]:
            label = _label(child, parent, joins.get(child.task_id))
            open_branches.append((child, branch.add(label)))
        if missing := hidden(parent, below[parent.task_id]):
            branch.add(Text(f"{missing} more, not shown", style="dim"))
    console().print(root)


def hidden(parent: TreeNode, shown: Sequence[TreeNode]) -> int:
    """How many children of a task there are beside those shown."""
    return max(0, parent.children - len(shown))


def _label(node: TreeNode, parent: TreeNode | None, join: Join | None) -> Text:
    label = Text()
    if node.candidate is not None:
        label.append(f"#{node.candidate} ")
    label.append(f"{node.task_id} ", style="dim")
    label.append(f"{_clean(node.kind)} ")
    label.append(node.status.value, style=_STYLES.get(node.status, ""))
    if node.error_code is not None:
        label.append(f": {_clean(node.error_code)}")
    if node.attempt > 0:
        label.append(f", try {node.attempt}")
    if parent is None or parent.topic != node.topic:
        label.append(f", topic {_clean(node.topic)}")
    if join is not None:
        label.append(f"; {counts(join)}")
    return label


def counts(join: Join) -> str:
    """The policy of a fan-out and how far it is, in a few words."""
    policy = f"quorum of {join.needed}" if join.policy == "quorum" else join.policy
    said = f"{policy}, {join.done} of {join.total} done"
    for count, word in ((join.failed, "failed"), (join.late, "late")):
        if count:
            said += f", {count} {word}"
    if join.state == "open" and join.max_running is not None:
        said += f", {join.in_flight} of {join.max_running} at a time"
    return said if join.outcome is None else f"{said}, {join.outcome}"


def _clean(text: str) -> str:
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")
