"""The judge of a run of real processes.

``verdict.judge`` takes what was recorded and says whether the rules of docs/proof.md held.
Only ``witness`` meets a database; all else is pure, so that a kept run can be judged again.
"""
