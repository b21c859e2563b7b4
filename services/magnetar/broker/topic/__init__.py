"""Topics: who publishes to them, and what happens to what was published."""
