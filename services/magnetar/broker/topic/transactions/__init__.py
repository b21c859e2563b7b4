"""The transactions of a topic: admission of messages, the horizon, and the aborted entries."""
