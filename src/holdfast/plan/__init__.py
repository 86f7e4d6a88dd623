"""Plans as data: documents that agents and people hand over, executed with the durability of a graph in code.

    shop = plan.Capabilities("shop")              # what plans may call
    order = shop.plan(plan.read("order.json"))    # raises PlanError: every problem at once, each with its path
    hf.run(order, run_id="order-4711")

`document` has the fields of a plan, `checking` finds its problems, `compiling` makes a flow of it, `wiring` and
`judges` are what the runtime calls. `expressions` is the only module that imports CEL.
"""

from holdfast.core.rules import Asked, Verdict, allow, ask, deny
from holdfast.errors import PlanError, Problem
from holdfast.plan.capabilities import Capabilities
from holdfast.plan.document import read

__all__ = ["Asked", "Capabilities", "PlanError", "Problem", "Verdict", "allow", "ask", "deny", "read"]
