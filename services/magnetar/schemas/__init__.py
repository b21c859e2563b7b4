"""Schemas as broker and client both see them: types, definitions, Avro's rules."""
