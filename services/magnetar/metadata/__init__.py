"""What must be agreed on, small and versioned: one store interface, several forms of it."""
