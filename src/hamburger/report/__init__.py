"""Run folders -> one page that needs nothing but a browser."""
