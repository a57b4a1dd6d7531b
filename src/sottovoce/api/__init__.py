"""Plain functions for notebooks and programs: what the commands do, as objects that show well."""
