"""The command `magnetar`: thin modules that parse, call and print."""
