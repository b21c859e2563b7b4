"""The broker: sessions, topics and subscriptions over managed ledgers. It holds no data."""
