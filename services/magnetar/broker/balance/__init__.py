"""Which broker serves what: load reports, one leader, a planner, orders, and a log of why."""
