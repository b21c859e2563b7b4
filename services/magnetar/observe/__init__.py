"""How a running process is seen from outside: log lines and metrics."""
