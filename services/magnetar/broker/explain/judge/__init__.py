"""Judgments: pure functions from state to findings."""
