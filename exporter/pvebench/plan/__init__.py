"""Planning, pure: expand axes, leave out what cannot be, select, order, estimate."""

from pvebench.plan.expand import Assignment, LeftOut, Matrix, check_slugs, expand, select
from pvebench.plan.order import Plan, make_plan
from pvebench.plan.wander import LATER_SECONDS, wait_seconds, wander_seconds

__all__ = [
    "LATER_SECONDS",
    "Assignment",
    "LeftOut",
    "Matrix",
    "Plan",
    "check_slugs",
    "expand",
    "make_plan",
    "select",
    "wait_seconds",
    "wander_seconds",
]
