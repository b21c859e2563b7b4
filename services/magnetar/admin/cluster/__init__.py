"""The admin REST of several brokers: any of them takes any request."""
