"""The command `magnetar`: thin modules that parse arguments, call other packages and print."""
