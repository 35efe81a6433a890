"""The engine for Python: what a program needs over the compiled part, whatever names it knows it by.

Modules here import each other one way only, and nothing of the package but `errors`, `cpu_products` and `_C`;
tests/policy/house_rules.py checks both.
"""
