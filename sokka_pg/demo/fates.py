"""What befalls two of the workers, each told as a story that waits by yielding.

All waits are for rows in the database or lines in a journal, never for a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sokka_pg.demo.crew import SLOTS, Hand
from sokka_pg.demo.table import Desk, Look
from sokka_pg.demo.telling import DemoFailed

SHOWN = 4


class Scene:
    """What the stories see: the last look at the database, and all workers."""

    def __init__(self, desk: Desk, hands: list[Hand], say: Callable[[str], None]) -> None:
        self.desk, self.hands, self.say = desk, hands, say
        self.victim, self.sleeper, *self.rest = hands
        self.killed_with: dict[str, int] = {}
        self.frozen_with: dict[str, int] = {}
        self.look = Look(0, {}, {})

    def glance(self) -> None:
        """Look again, at journals and at the database."""
        for hand in self.hands:
            hand.read()
        self.look = self.desk.look()

    def rows(self, hands: list[Hand]) -> int:
        """Rows that these workers have written."""
        return sum(self.look.rows.get(hand.pid or "", 0) for hand in hands)

    def leases_of(self, hand: Hand) -> dict[str, int]:
        """What it holds at this moment, token by task."""
        return self.desk.look().leases.get(hand.pid or "", {})

    def taken_over(self, leases: dict[str, int]) -> bool:
        """Whether each of these tasks has had a newer token since."""
        owners = self.desk.owners(list(leases))
        return all((owner["token"] or 0) > leases[owner["task_id"]] for owner in owners)


def beginning(scene: Scene) -> Iterator[None]:
    """The two to be hit begin first, so that both surely hold tasks."""
    while not all(hand.pid for hand in scene.hands):
        yield
    scene.victim.begin()
    scene.sleeper.begin()
    while not (_ready(scene.victim, scene) and _ready(scene.sleeper, scene)):
        yield
    for hand in scene.rest:
        hand.begin()


def killing(scene: Scene) -> Iterator[None]:
    """One worker dies by kill -9 with its leases in hand."""
    hand = scene.victim
    while not (_ready(hand, scene) and scene.rows(scene.rest)):
        yield
    hand.kill()
    lost = scene.killed_with = _some(scene.leases_of(hand), hand)
    scene.say(f"{hand.name} killed (kill -9), holding {_tokens(lost.values())}")
    while not scene.taken_over(lost):
        yield
    scene.say(f"{hand.name}: its leases ran out, its tasks went on: {_new(scene, lost)}")


def freezing(scene: Scene) -> Iterator[None]:
    """One worker is frozen just before its writes, and wakes when its tasks are others'."""
    hand = scene.sleeper
    while not (_ready(hand, scene) and scene.rows(scene.rest)):
        yield
    held = scene.frozen_with = hand.held(scene.look)
    hand.freeze()
    while not hand.stopped():
        yield
    lost = _some(scene.leases_of(hand), hand)
    holding = _tokens(lost.values())
    scene.say(f"{hand.name} frozen (SIGSTOP) before its writes, holding {holding}")
    hand.order("go\n")  # it will read this when it wakes
    while not scene.taken_over(lost):
        yield
    scene.say(f"{hand.name}: its leases ran out, its tasks went on: {_new(scene, lost)}")
    hand.wake()
    scene.say(f"{hand.name} woken (SIGCONT): it goes on with its writes, knowing nothing")
    while not held.keys() <= {refusal["task_id"] for refusal in hand.refusals}:
        yield
    scene.say(f"{hand.name}: the database refused {len(hand.refusals)} stale writes")


def _ready(hand: Hand, scene: Scene) -> bool:
    return len(hand.held(scene.look)) >= SLOTS


def _some(leases: dict[str, int], hand: Hand) -> dict[str, int]:
    if not leases:
        raise DemoFailed(f"worker {hand.name} held no lease when it was hit; try again")
    return leases


def _new(scene: Scene, leases: dict[str, int]) -> str:
    return _tokens(owner["token"] for owner in scene.desk.owners(list(leases)))


def _tokens(tokens: Iterable[int]) -> str:
    """The ends of the numbers: they all begin alike, and the report has them whole."""
    ends = [f"…{str(token)[-4:]}" for token in sorted(tokens)]
    return f"tokens {', '.join(ends[:SHOWN])}{', …' if len(ends) > SHOWN else ''}"
