"""Which worker runs a request: summaries of the workers' trees, and a rule over them.

Plain Python on token ids and numbers, without a runtime, Ray or threads: a simulator runs the same
code as `radixlang.Workers`.
"""

from radixlang.routing.prefix_summary import PrefixSummary
from radixlang.routing.router import Costs, Route, RoutedRequest, Router

__all__ = ["Costs", "PrefixSummary", "Route", "RoutedRequest", "Router"]
