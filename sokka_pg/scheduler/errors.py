"""What goes wrong with jobs, schedulers and locks: one class each."""

from __future__ import annotations

from sokka_pg.errors import BadArgument, SokkaError, UsageError


class InvalidJob(BadArgument):
    """The job breaks a rule. ``detail`` names ``argument`` and ``rule``."""


class JobAlreadyExists(UsageError):
    """A job of this name is registered."""


class JobNotFound(SokkaError, LookupError):
    """No job of this name is registered."""


class HandlerExists(UsageError):
    """A handler of this name is registered."""


class AlreadyStarted(UsageError):
    """A scheduler starts once, and takes no jobs after that."""


class NotStarted(UsageError):
    """The scheduler does not run: it was not started, or it was shut down."""


class RunSkipped(SokkaError):
    """The run did not begin. ``reason``: ``overlap`` or ``lease_contended``."""

    @classmethod
    def of(cls, job_name: str, reason: str) -> RunSkipped:
        """The error for a run of this job."""
        return cls(f"job {job_name}: skipped ({reason})", {"job_name": job_name, "reason": reason})

    @property
    def reason(self) -> str:
        """Why it was skipped."""
        return str(self.detail.get("reason", ""))


class LockHeld(SokkaError):
    """Somebody else holds the lock. ``detail`` names the ``key``."""
