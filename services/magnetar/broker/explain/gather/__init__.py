"""Gathers the state that judgments are made from."""
