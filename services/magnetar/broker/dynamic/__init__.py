"""Settings that change while brokers run: which they are, their record, and their follower."""
