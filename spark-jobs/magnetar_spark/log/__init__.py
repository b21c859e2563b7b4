"""Topics' logs read straight from bookies, without Spark, brokers or subscriptions."""
