"""One client's connection: frames in, commands handled, frames out."""
