"""An hour of clients that come and go, and what the server's memory does meanwhile: `make soak`."""
