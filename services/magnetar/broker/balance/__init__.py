"""Load balancing: load reports, a leader, a planner, orders to brokers, and a log of decisions."""
