"""Topics: their producers, their logs, and how they are opened, moved and closed."""
