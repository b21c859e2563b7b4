"""Drains of bookies: autorecovery moves their copies, and a proof shows that none is needed."""
