"""A server for the tests of programs: fixtures of pytest (`magnetar.testing.plugin`)."""
