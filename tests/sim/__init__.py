"""The whole system, the real code, on one seeded loop: see `README.md` in this folder."""
