"""What transactions leave readable of a log, found without a broker."""
