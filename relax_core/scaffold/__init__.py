"""New plugins: a complete distribution for every kind of component, from templates that ship with core."""
