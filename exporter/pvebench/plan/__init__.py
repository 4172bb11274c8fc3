"""Planning, pure: expand axes, leave out what cannot be, select, order, estimate."""

from pvebench.plan.expand import Assignment, LeftOut, Matrix, check_slugs, expand, select
from pvebench.plan.order import Plan, make_plan

__all__ = [
    "Assignment",
    "LeftOut",
    "Matrix",
    "Plan",
    "check_slugs",
    "expand",
    "make_plan",
    "select",
]
