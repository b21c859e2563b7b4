"""What tests of several folders share: a server process, and a client that hides nothing."""
