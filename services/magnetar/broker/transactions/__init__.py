"""Transactions: the coordinators that this broker serves, their records, and the participants."""
