"""The admin REST of several brokers: each of them accepts every request."""
