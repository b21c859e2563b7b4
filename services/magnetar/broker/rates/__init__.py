"""Rate limits of publishing, dispatching and subscribing."""
