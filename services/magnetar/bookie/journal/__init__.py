"""The journal: format, files, group commits with one sync, and replay after a crash."""
