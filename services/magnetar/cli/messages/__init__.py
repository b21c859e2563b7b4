"""The commands that send and receive messages: `produce`, `consume`, `read`, and their parts."""
