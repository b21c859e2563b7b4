"""The producer, a file per step: build, intercept, route, admit, batch, encode, send."""
