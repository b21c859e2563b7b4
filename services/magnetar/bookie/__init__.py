"""Where entries become durable: journal, write cache, entry logs and their index."""
