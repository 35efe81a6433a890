"""Parameters under an engine and on the way to one: scopes, marks, and accesses that go past torch's operators."""
