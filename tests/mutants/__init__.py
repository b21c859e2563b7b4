"""Mutation campaign: the tests that cover a line, against one small mistake in that line."""
