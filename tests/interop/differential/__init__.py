"""Seeded scenarios whose observations on Magnetar are compared with those recorded of Pulsar."""
