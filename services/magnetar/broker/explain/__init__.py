"""Explains why messages are not delivered or not published: state, judgment, and stalls."""
