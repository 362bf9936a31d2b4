"""The acceptance cases, their twins, and how a verdict about one is judged."""
